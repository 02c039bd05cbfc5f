//! A victim that does what it is told, so many times; and what the samples of it add up to.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};

use strobe_agent::runner::{Ask, Target};
use strobe_event::RawBatch;

use super::inside::ask;
use super::{Place, build, samples};

/// Does what it is told by a line on its input: so many of something. Then says `done`.
pub const DOER: &str = r#"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <fcntl.h>
volatile uint64_t watched[4];
void touch_pages(long count) {
	char *pages = mmap(0, count * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(pages, count * 4096, MADV_NOHUGEPAGE);
	for (long i = 0; i < count; i++) ((volatile char *)pages)[i * 4096] = 1;
	munmap(pages, count * 4096);
}
void call_kernel(long count) { for (long i = 0; i < count; i++) syscall(SYS_getppid); }
void write_bytes(long count) {
	static char bytes[1000];
	int to = open("/dev/null", O_WRONLY);
	for (long i = 0; i < count; i++) syscall(SYS_write, to, bytes, sizeof(bytes));
	close(to);
}
void touch_data(long count) {
	struct timespec pause = { 0, 100000 };
	for (long i = 0; i < count; i++) { watched[0] = i; nanosleep(&pause, 0); }
}
int main(void)
{
	char what[64];
	long count;
	printf("%lx\n", (unsigned long)&watched[0]);
	fflush(stdout);
	while (scanf("%63s %ld", what, &count) == 2) {
		if (!strcmp(what, "pages")) touch_pages(count);
		if (!strcmp(what, "calls")) call_kernel(count);
		if (!strcmp(what, "writes")) write_bytes(count);
		if (!strcmp(what, "data")) touch_data(count);
		printf("done\n");
		fflush(stdout);
	}
	return 0;
}
"#;

pub struct Doer {
    child: Child,
    input: ChildStdin,
    output: BufReader<std::process::ChildStdout>,
    /// Where `watched` lies.
    pub address: u64,
}

impl Doer {
    pub fn start(place: &Place) -> Self {
        let path = place.path("doer");
        build(DOER, &path);
        let mut child = Command::new(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        Self {
            input: child.stdin.take().unwrap(),
            address: u64::from_str_radix(line.trim(), 16).unwrap(),
            child,
            output,
        }
    }

    pub fn does(&mut self, what: &str, count: u64) {
        writeln!(self.input, "{what} {count}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n");
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its minor faults, by the kernel's account.
    pub fn minor_faults(&self) -> u64 {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        let behind_name = &text[text.rfind(')').unwrap() + 2..];
        behind_name.split(' ').nth(7).unwrap().parse().unwrap()
    }

    pub fn watch(&self, word: u64, seconds: u64) -> Ask {
        let address = format!("{:#x}", self.address + 8 * word);
        Ask {
            parameters: BTreeMap::from([("address".to_owned(), address)]),
            target: Target::Pids(vec![self.pid()]),
            ..ask("data-watch", seconds)
        }
    }
}

impl Drop for Doer {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// Returns what the samples of a run stand for together.
pub fn total(batches: &[RawBatch]) -> u64 {
    let of = |batch: &RawBatch| match batch.samples.value.is_empty() {
        true => batch.run.period * batch.samples.len() as u64,
        false => batch.samples.value.iter().sum(),
    };
    batches.iter().map(of).sum()
}

/// Returns the share of the samples whose stack runs through a function, by its address range in the victim's symbol table.
pub fn share_through(batches: &[RawBatch], executable: &str, range: (u64, u64)) -> f64 {
    let all = samples(batches, |_| true);
    let through = all.iter().filter(|sample| {
        let mut frames = sample.frames.iter();
        frames.any(|frame| frame.path.ends_with(executable) && (range.0..range.1).contains(&frame.address))
    });
    through.count() as f64 / all.len() as f64
}

/// Returns where a function of a program lies, by `nm`.
pub fn range_of(program: &std::path::Path, function: &str) -> (u64, u64) {
    let output = Command::new("nm").arg("-S").arg(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text
        .lines()
        .find(|line| line.ends_with(&format!(" {function}")))
        .unwrap();
    let mut words = line.split(' ').map(|word| u64::from_str_radix(word, 16));
    let (at, size) = (words.next().unwrap().unwrap(), words.next().unwrap().unwrap());
    (at, at + size)
}
