//! A process whose stack is known: functions that call one another, each in its own frame.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The tests load all CPUs and look at all processes: one at a time.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the name of the test that runs: that of its thread.
pub fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

/// Returns why tests of the kernel cannot run here, printed as skipped.
pub fn skipped() -> bool {
    let compiler = Command::new("gcc").arg("--version").output();
    let missing = compiler
        .is_err()
        .then(|| "no gcc: install the Debian package `gcc`".to_owned());
    match strobe_bpf::probe::can_run().err().or(missing) {
        Some(reason) => {
            println!("skipped: {}: {reason}", test_name());
            true
        }
        None => false,
    }
}

/// Seconds that the CPUs have been idle, and that a hypervisor took from them, in sum.
pub fn idle_and_stolen_seconds() -> (f64, f64) {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let ticks: Vec<f64> = stat
        .lines()
        .next()
        .unwrap()
        .split_whitespace()
        .skip(1)
        .flat_map(str::parse)
        .collect();
    // USER_HZ is 100 wherever Linux runs. Waiting for a disk is idle, too.
    ((ticks[3] + ticks[4]) / 100.0, ticks[7] / 100.0)
}

/// Compiles a C program, with frame pointers.
pub fn compile(source: &str, into: &Path) {
    let flags = [
        "-O1",
        "-g0",
        "-fno-omit-frame-pointer",
        "-mno-omit-leaf-frame-pointer",
        "-fno-optimize-sibling-calls",
    ];
    compile_with(source, into, &flags);
}

/// Compiles a C program.
pub fn compile_with(source: &str, into: &Path, flags: &[&str]) {
    let path = into.with_extension("c");
    std::fs::write(&path, source).unwrap();
    let output = Command::new("gcc")
        .args(flags)
        .args(["-Wl,--build-id=sha1", "-pthread", "-o"])
        .arg(into)
        .arg(&path)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Returns a program of `depth` functions, `f0` the innermost, that first prints where each begins and then loops in
/// `f0`. With an argument it becomes that program by `exec` after half a second.
pub fn chain_source(depth: usize) -> String {
    let mut source = String::from(
        "#include <stdio.h>\n#include <time.h>\n#include <unistd.h>\nstatic char **next;\nvolatile unsigned long spins;\n\
         static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }\n\
         __attribute__((noinline)) void f0(void) { double begin = now(); for (;;) {\n\
         for (int i = 0; i < 200000; i++) spins++;\n\
         if (next[1] && now() - begin > 0.5) { execv(next[1], next + 1); _exit(3); } } }\n",
    );
    for n in 1..depth {
        source += &format!(
            "__attribute__((noinline)) void f{n}(void) {{ f{}(); __asm__ volatile(\"\"); }}\n",
            n - 1
        );
    }
    source += "int main(int argc, char **argv) { next = argv;\n";
    for n in 0..depth {
        source += &format!("printf(\"%lx \", (unsigned long)f{n});\n");
    }
    source += &format!(
        "printf(\"%lx\\n\", (unsigned long)main); fflush(stdout); f{}(); return 0; }}\n",
        depth - 1
    );
    source
}

/// The running chain, killed when dropped.
pub struct Chain {
    pub child: Child,
    output: BufReader<ChildStdout>,
    /// Where `f0`, `f1`, …, `main` begin.
    pub functions: Vec<u64>,
}

impl Chain {
    pub fn start(program: &Path, arguments: &[&Path]) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let mut chain = Self {
            child,
            output,
            functions: Vec::new(),
        };
        chain.read_functions();
        chain
    }

    /// Waits for the program, or after an `exec` the next one, to say where its functions are.
    pub fn read_functions(&mut self) {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        self.functions = line
            .split_whitespace()
            .map(|address| u64::from_str_radix(address, 16).unwrap())
            .collect();
    }

    /// Returns the functions of a user stack, innermost first.
    pub fn functions_of(&self, frames: &[u64]) -> Vec<Option<usize>> {
        // A return address lies past its call, which may be the last instruction of its function.
        let calls = frames
            .iter()
            .enumerate()
            .map(|(n, frame)| if n == 0 { *frame } else { frame - 1 });
        calls.map(|address| self.function_of(address)).collect()
    }

    /// Returns the number of the function that an address lies in; `main` has the last one.
    fn function_of(&self, address: u64) -> Option<usize> {
        let begins = self
            .functions
            .iter()
            .enumerate()
            .filter(|(_, begin)| **begin <= address);
        let (number, begin) = begins.max_by_key(|(_, begin)| **begin)?;
        // Each is a few instructions long, `main` some hundred.
        (address - begin < 4096).then_some(number)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
