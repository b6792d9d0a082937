//! From CUDA C++ to a function on the GPU.

use super::super::{DeviceError, Result};
use cudarc::driver::{CudaContext, CudaFunction};
use cudarc::nvrtc::{CompileError, CompileOptions, Ptx, compile_ptx_with_opts};
use std::sync::Arc;

/// The source; see the file for what it does.
const BLOCKS: &str = include_str!("../kernels/blocks.cu");

/// Compiles the kernels for the lowest architecture that has what they use, so that one text fits every GPU, and loads them.
pub(super) fn load(context: &Arc<CudaContext>) -> Result<CudaFunction> {
    let refuse = |reason: String| DeviceError::Kernels { reason };
    let ptx = compile().ok_or_else(|| refuse("the library NVRTC was not found".into()))?;
    let ptx = ptx.map_err(|error| refuse(said(&error)))?;
    let failed = |call, error| super::failed(context.ordinal(), call, error);
    let module = context.load_module(ptx).map_err(|error| failed("cuModuleLoadData", error))?;
    module.load_function("bvk_copy_blocks").map_err(|error| failed("cuModuleGetFunction", error))
}

/// NVRTC's PTX of the kernels; `None` where there is no such library.
fn compile() -> Option<std::result::Result<Ptx, CompileError>> {
    // SAFETY: it only tries to load the library. cudarc would panic later.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return None;
    }
    let options = CompileOptions {
        options: vec!["--gpu-architecture=compute_80".into(), "--std=c++17".into()],
        ..CompileOptions::default()
    };
    Some(compile_ptx_with_opts(BLOCKS, options))
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
        let Some(compiled) = compile() else {
            eprintln!("SKIPPED: no NVRTC library on this machine; ci/setup.sh --with-tests installs it");
            return;
        };
        let ptx = compiled.unwrap_or_else(|error| panic!("{}", said(&error)));
        assert!(ptx.to_src().contains(".entry bvk_copy_blocks"));
    }
}
