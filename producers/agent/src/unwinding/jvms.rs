//! What the JVMs of this host have said of their generated code: each is asked once it has something to say.

use rustc_hash::FxHashMap;
use strobe_bpf::ImageIdentity;

use crate::jvm::Jvm;
use crate::patience::Patience;

/// How often a JVM is asked that does not answer: it makes its heaps some 50 ms after its library is loaded. One that says nothing
/// after that is of a version that says something else.
const ATTEMPTS_MAX: u8 = 10;
/// Pause between two questions: each costs some ms.
const AGAIN_NS: u64 = 200_000_000;

/// What a JVM has said.
#[derive(Debug)]
pub enum Answer<'a> {
    /// Where its generated code lies.
    Heaps(&'a Jvm),
    /// It is to be asked again.
    NotYet,
    /// It says nothing that is understood here.
    Never,
}

#[derive(Debug)]
struct Asked {
    image: ImageIdentity,
    said: Option<Jvm>,
    attempts: u8,
    again_ns: u64,
}

/// The answers of all JVMs.
#[derive(Debug, Default)]
pub struct Jvms {
    by_pid: FxHashMap<u32, Asked>,
    /// Their memory may lie in a file that never answers.
    patience: Patience,
}

impl Jvms {
    /// Returns what an image has said, asking it where that is due. `bias` is what is added to the addresses of its library.
    pub fn of(&mut self, image: ImageIdentity, bias: u64, now_ns: u64) -> Answer<'_> {
        let asked = self.by_pid.entry(image.tgid).or_insert(Asked {
            image,
            said: None,
            attempts: 0,
            again_ns: 0,
        });
        if asked.image != image {
            (asked.image, asked.said, asked.attempts, asked.again_ns) = (image, None, 0, 0);
        }
        if asked.said.is_none() && asked.attempts < ATTEMPTS_MAX && now_ns >= asked.again_ns {
            asked.attempts += 1;
            asked.again_ns = now_ns.saturating_add(AGAIN_NS);
            let pid = image.tgid;
            asked.said = self.patience.ask(move || Jvm::read(pid, bias)).flatten();
        }
        match &asked.said {
            Some(jvm) => Answer::Heaps(jvm),
            None if asked.attempts < ATTEMPTS_MAX => Answer::NotYet,
            None => Answer::Never,
        }
    }

    /// Forgets a process.
    pub fn forget(&mut self, pid: u32) {
        self.by_pid.remove(&pid);
    }
}
