//! From CUDA C++ to a function on the GPU.

use super::super::{DeviceError, Result};
use cudarc::driver::{CudaContext, CudaFunction};
use cudarc::nvrtc::{CompileError, CompileOptions, Ptx, compile_ptx_with_opts};
use std::panic::catch_unwind;
use std::sync::Arc;

/// The source; see the file for what it does.
const BLOCKS: &str = include_str!("../kernels/blocks.cu");

/// Compiles the kernels for the lowest architecture that has what they use, so that one text fits every GPU, and loads them.
pub(super) fn load(context: &Arc<CudaContext>) -> Result<CudaFunction> {
    let refuse = |reason: String| DeviceError::Kernels { reason };
    // cudarc panics where it does not find the library.
    let compiled = catch_unwind(compile).map_err(|_| refuse("the library NVRTC was not found".into()))?;
    let ptx = compiled.map_err(|error| refuse(said(&error)))?;
    let module = context.load_module(ptx).map_err(|error| refuse(format!("cuModuleLoadData: {error}")))?;
    module.load_function("bvk_copy_blocks").map_err(|error| refuse(format!("cuModuleGetFunction: {error}")))
}

/// NVRTC's PTX of the kernels.
pub(super) fn compile() -> std::result::Result<Ptx, CompileError> {
    let options = CompileOptions {
        options: vec!["--gpu-architecture=compute_80".into(), "--std=c++17".into()],
        ..CompileOptions::default()
    };
    compile_ptx_with_opts(BLOCKS, options)
}

fn said(error: &CompileError) -> String {
    match error {
        CompileError::CompileError { log, .. } => log.to_string_lossy().into_owned(),
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs the NVRTC library but no GPU: CI installs it.
    #[test]
    fn the_kernels_compile() {
        let Ok(compiled) = catch_unwind(compile) else {
            eprintln!("SKIPPED: no NVRTC library on this machine; ci/setup.sh --with-tests installs it");
            return;
        };
        let ptx = compiled.unwrap_or_else(|error| panic!("{}", said(&error)));
        assert!(ptx.to_src().contains(".entry bvk_copy_blocks"));
    }
}
