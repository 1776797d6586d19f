//! This program again, in another role.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;

use rustix::process::{Pid, Signal, WaitIdOptions, waitid};
use shm::ProcessSlot;

use crate::setting::{FIRST, REPAIRS, SECOND, Segment};

const ROLE: &str = "HOTSHELF_TEST_ROLE";
const DIR: &str = "HOTSHELF_TEST_DIR";

/// A child that takes its orders by lines, and is killed when dropped.
pub struct Process {
    child: Child,
    said: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(role: &str, dir: &Path) -> Process {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "process::another_role", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(DIR, dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        Process { child, said }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.child.stdin.as_mut().expect("a pipe"), "{line}").expect("a line");
    }

    /// What it says next; libtest says things too.
    pub fn hear(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).expect("heard") > 0, "the process ended without a word");
            if let Some((_, said)) = line.split_once("SAY ") {
                return said.trim_end().to_owned();
            }
        }
    }

    pub fn hear_process_slot(&mut self) -> ProcessSlot {
        ProcessSlot(self.hear().parse().expect("a number"))
    }

    pub fn signal(&self, signal: Signal) {
        rustix::process::kill_process(Pid::from_child(&self.child), signal).expect("signalled");
    }

    /// The process is stopped when this returns.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        waitid(rustix::process::WaitId::Pid(Pid::from_child(&self.child)), WaitIdOptions::STOPPED).expect("stopped");
    }

    pub fn wait(mut self) {
        assert!(self.child.wait().expect("ended").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(what: impl std::fmt::Display) {
    println!("SAY {what}");
}

fn read_command() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a line");
    line.trim_end().to_owned()
}

/// No test by itself: what [`Process::start`] runs.
#[test]
fn another_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let segment = Segment::open(Path::new(&std::env::var_os(DIR).expect("a folder")));
    match role.as_str() {
        "sits" => sits(&segment),
        "holds" => holds(&segment),
        "holds without a CPU" => holds_without_a_cpu(&segment),
        "counts" => counts(&segment),
        "leads" => leads(&segment),
        "cleans up" => {
            assert!(segment.processes.try_lead());
            segment.processes.dead().into_iter().for_each(|dead| segment.processes.clear(dead));
        }
        "locks itself up" => locks_itself_up(&segment),
        role => panic!("no role {role}"),
    }
}

/// Sits, says where, rises when told.
fn sits(segment: &Segment) {
    let me = segment.attach();
    say(me.0);
    read_command();
    segment.processes.detach(me);
}

/// Takes the lock, says whether it was abandoned, and gives it back when told.
fn holds(segment: &Segment) {
    let me = segment.attach();
    say(me.0);
    let held = segment.lock(me).lock();
    say(held.was_abandoned());
    read_command();
    drop(held);
    say("given back");
    read_command();
}

/// Holds the lock until two seconds have passed, at the lowest priority on a CPU that two other threads want all of.
fn holds_without_a_cpu(segment: &Segment) {
    use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
    let all = sched_getaffinity(None).expect("known");
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).expect("a CPU"));
    let (is_over, begun) = (std::sync::atomic::AtomicBool::new(false), std::time::Instant::now());
    std::thread::scope(|scope| {
        let spin = || {
            sched_setaffinity(None, &one).expect("pinned");
            while !is_over.load(Relaxed) && begun.elapsed().as_secs() < 60 {
                std::hint::spin_loop();
            }
        };
        let me = segment.attach();
        let held = segment.lock(me).lock();
        (0..2).for_each(|_| _ = scope.spawn(spin));
        say(me.0);
        sched_setaffinity(None, &one).expect("pinned");
        rustix::process::setpriority_process(Some(gettid()), 19).expect("allowed");
        while begun.elapsed().as_secs() < 2 {
            std::hint::spin_loop();
        }
        drop(held);
        is_over.store(true, Relaxed);
    });
    read_command();
}

/// Until it is killed, at whatever point.
fn counts(segment: &Segment) {
    let me = segment.attach();
    say(me.0);
    loop {
        count(segment, me);
    }
}

/// One more on both sides, after a repair where one is needed.
pub fn count(segment: &Segment, me: ProcessSlot) {
    let held = segment.lock(me).lock();
    let (first, second) = (segment.region.u64(FIRST), segment.region.u64(SECOND));
    let (was, also) = (first.load(Relaxed), second.load(Relaxed));
    assert!(was == also || held.was_abandoned(), "{was} and {also}, and nobody said so");
    if was != also {
        segment.region.u64(REPAIRS).fetch_add(1, Relaxed);
        second.store(was, Relaxed);
    }
    first.store(was + 1, Relaxed);
    // Long enough to be killed here.
    (0..200).for_each(|_| std::hint::spin_loop());
    second.store(was + 1, Relaxed);
}

fn leads(segment: &Segment) {
    segment.processes.lead().expect("leads");
    say("leads");
    read_command();
    segment.processes.resign();
    say("resigned");
    read_command();
}

/// Leads here, and then tries to lead in the segment whose folder it reads.
fn locks_itself_up(segment: &Segment) {
    segment.processes.lead().expect("leads");
    say("leads");
    let other = Segment::open(Path::new(&read_command()));
    say("waits");
    other.processes.lead().expect("no deadlock");
    say("leads both");
    read_command();
}
