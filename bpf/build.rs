//! Compiles each `progs/*.bpf.c` and writes its skeleton: the object's bytes and typed access to its maps.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use libbpf_cargo::SkeletonBuilder;

/// The oldest clang that keeps enum relocations through `-O2` as the programs need them.
const CLANG_MAJOR_MIN: u32 = 12;

fn main() -> Result<()> {
    println!("cargo:rerun-if-changed=progs");
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = env::var_os("CLANG").unwrap_or_else(|| "clang".into());
    check_clang(&clang)?;
    let out = PathBuf::from(env::var_os("OUT_DIR").context("OUT_DIR is not set: run this through cargo")?);
    for program in ["on_cpu", "bench"] {
        SkeletonBuilder::new()
            .source(format!("progs/{program}.bpf.c"))
            .clang(&clang)
            .clang_args(["-mcpu=v3", "-Wall", "-Werror"])
            .build_and_generate(out.join(format!("{program}.skel.rs")))
            .with_context(|| format!("compiling progs/{program}.bpf.c"))?;
    }
    Ok(())
}

/// Fails with what to install, rather than with "No such file or directory".
fn check_clang(clang: &std::ffi::OsStr) -> Result<()> {
    const INSTALL: &str =
        "install the Debian package `clang` (`apt-get install clang`), or name another one in CLANG";
    let Ok(output) = Command::new(clang).arg("-dumpversion").output() else {
        bail!(
            "compiling the BPF programs needs clang, and `{}` was not found: {INSTALL}",
            clang.to_string_lossy()
        );
    };
    let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    match version
        .split('.')
        .next()
        .and_then(|major| major.parse::<u32>().ok())
    {
        Some(major) if major >= CLANG_MAJOR_MIN => Ok(()),
        _ => bail!(
            "compiling the BPF programs needs clang {CLANG_MAJOR_MIN} or later, not {version:?}: {INSTALL}"
        ),
    }
}
