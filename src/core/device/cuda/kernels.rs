//! From CUDA C++ to a function on the GPU.

use super::super::{DeviceError, Result};
use cudarc::driver::{CudaContext, CudaFunction, CudaModule};
use cudarc::nvrtc::{CompileError, CompileOptions, Ptx, compile_ptx_with_opts};
use std::sync::Arc;

/// The sources; see the files for what they do.
const BLOCKS: &str = concat!(include_str!("../kernels/digest.cuh"), include_str!("../kernels/blocks.cu"));
const CHUNKS: &str = concat!(include_str!("../kernels/digest.cuh"), include_str!("../kernels/chunks.cu"));
const ROWS: &str = include_str!("../kernels/rows.cu");

/// The functions of `chunks.cu`.
pub(super) struct Functions {
    pub(super) leaves: CudaFunction,
    pub(super) label: CudaFunction,
    pub(super) lift: CudaFunction,
    pub(super) runs: CudaFunction,
    pub(super) rebuild: CudaFunction,
    pub(super) keep: CudaFunction,
}

/// The kernels that copy blocks: with a thread block for each item, and with any number of them.
pub(super) fn load_blocks(context: &Arc<CudaContext>) -> Result<[CudaFunction; 2]> {
    let module = load(context, BLOCKS)?;
    Ok([function(&module, context, "bvk_copy_blocks")?, function(&module, context, "bvk_send_blocks")?])
}

/// The kernel that copies rows.
pub(super) fn load_rows(context: &Arc<CudaContext>) -> Result<CudaFunction> {
    function(&load(context, ROWS)?, context, "bvk_copy_rows")
}

/// The kernels that look for chunks.
pub(super) fn load_chunks(context: &Arc<CudaContext>) -> Result<Functions> {
    let module = load(context, CHUNKS)?;
    let named = |name| function(&module, context, name);
    Ok(Functions {
        leaves: named("bvk_chunk_leaves")?,
        label: named("bvk_chunk_label")?,
        lift: named("bvk_chunk_lift")?,
        runs: named("bvk_chunk_runs")?,
        rebuild: named("bvk_chunk_rebuild")?,
        keep: named("bvk_chunk_keep")?,
    })
}

/// Compiles kernels for the lowest architecture that has what they use, so that the same text fits
/// every GPU, and loads them.
fn load(context: &Arc<CudaContext>, text: &str) -> Result<Arc<CudaModule>> {
    let refuse = |reason: String| DeviceError::Kernels { reason };
    let ptx = compile(text).ok_or_else(|| refuse("the library NVRTC was not found".into()))?;
    let ptx = ptx.map_err(|error| refuse(said(&error)))?;
    context.load_module(ptx).map_err(|error| super::failed(context.ordinal(), "cuModuleLoadData", error))
}

fn function(module: &Arc<CudaModule>, context: &Arc<CudaContext>, name: &str) -> Result<CudaFunction> {
    let function = module.load_function(name);
    function.map_err(|error| super::failed(context.ordinal(), "cuModuleGetFunction", error))
}

/// NVRTC's PTX of a text; `None` where there is no such library.
fn compile(text: &str) -> Option<std::result::Result<Ptx, CompileError>> {
    // SAFETY: it only tries to load the library. cudarc would panic later.
    if !unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return None;
    }
    let options = CompileOptions {
        options: vec!["--gpu-architecture=compute_80".into(), "--std=c++17".into()],
        ..CompileOptions::default()
    };
    Some(compile_ptx_with_opts(text, options))
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
        for (text, entries) in [(BLOCKS, 2), (CHUNKS, 6), (ROWS, 1)] {
            let Some(compiled) = compile(text) else {
                eprintln!("SKIPPED: no NVRTC library on this machine; ci/setup.sh --with-tests installs it");
                return;
            };
            let ptx = compiled.unwrap_or_else(|error| panic!("{}", said(&error)));
            assert_eq!(ptx.to_src().matches(".entry bvk_").count(), entries);
        }
    }
}
