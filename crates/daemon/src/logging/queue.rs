//! The lines of the log on their way out: a bounded queue, which one thread of its own writes.
//!
//! A thread that logs never waits for the reader of the log. While nothing waits and the reader keeps up, it writes its line
//! itself, so that a process that is killed loses none. What does not fit is dropped and counted. From then on all lines are
//! dropped until the queue is written, and the count follows; so the lines that are written, and the count, are in order.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use panic_guard::guarded_call;
use parking_lot::{Condvar, Mutex};

/// What the log calls the work of its own thread.
const WRITING: &str = "the writing of the log";

/// How much may wait to be written.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Lines, with the one that is being written.
    pub lines: usize,
    /// Bytes of these lines.
    pub bytes: usize,
}

/// The queue. Cheap to clone; clones share it.
#[derive(Clone)]
pub struct Queue {
    limits: Limits,
    /// Writes a line where that waits for nobody; whether it did.
    at_once: fn(&[u8]) -> bool,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// The writer waits for a line here.
    queued: Condvar,
    /// [`Queue::flush`] waits for the end of all lines here.
    written: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Vec<u8>>,
    /// Lines that wait or are being written, and their bytes.
    lines: usize,
    bytes: usize,
    /// Lines that were dropped since the last count was written.
    lost: u64,
    /// Whether the writer writes the count.
    is_counting: bool,
}

impl State {
    const fn is_empty(&self) -> bool {
        self.lines == 0 && self.lost == 0 && !self.is_counting
    }
}

impl Queue {
    /// Starts the thread that writes to `out`; `count` makes the line that says how many lines were lost. `at_once` writes a
    /// line to the same place if that waits for nobody, and says whether it did.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        limits: Limits,
        at_once: fn(&[u8]) -> bool,
        out: impl Write + Send + 'static,
        count: impl Fn(u64) -> Vec<u8> + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let queue = Self { limits, at_once, shared: Arc::clone(&shared) };
        thread::Builder::new().name("log".to_owned()).spawn(move || shared.write(out, count))?;
        Ok(queue)
    }

    /// Writes a line at once, adds it, or counts it as lost. Never waits for the writer.
    pub fn push(&self, line: &[u8]) {
        let mut state = self.shared.state.lock();
        // No other line can come between: the lock is held.
        if state.is_empty() && (self.at_once)(line) {
            return;
        }
        let fits = state.lines < self.limits.lines && state.bytes + line.len() <= self.limits.bytes;
        if state.lost > 0 || !fits {
            state.lost += 1;
            return;
        }
        state.lines += 1;
        state.bytes += line.len();
        state.waiting.push_back(line.to_vec());
        drop(state);
        self.shared.queued.notify_one();
    }

    /// Waits until all lines are written, at most so long; whether they are.
    pub fn flush(&self, longest: Duration) -> bool {
        let mut state = self.shared.state.lock();
        self.shared.written.wait_while_for(&mut state, |state| !state.is_empty(), longest);
        state.is_empty()
    }
}

impl Shared {
    /// Writes until the process ends.
    fn write(&self, mut out: impl Write, count: impl Fn(u64) -> Vec<u8>) {
        let mut state = self.state.lock();
        loop {
            if let Some(line) = state.waiting.pop_front() {
                drop(state);
                // What cannot be written is dropped, and so is what a defect interrupts: the lines behind it tell of that.
                let _ = guarded_call(WRITING, || out.write_all(&line));
                state = self.state.lock();
                state.lines -= 1;
                state.bytes -= line.len();
            } else if state.lost > 0 {
                let lost = std::mem::take(&mut state.lost);
                state.is_counting = true;
                drop(state);
                let _ = guarded_call(WRITING, || out.write_all(&count(lost)));
                state = self.state.lock();
                state.is_counting = false;
            } else {
                self.written.notify_all();
                self.queued.wait(&mut state);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use parking_lot::MutexGuard;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);
    const LIMITS: Limits = Limits { lines: 4, bytes: 100 };
    /// A line at which the writer panics.
    const DEFECT: &[u8] = b"defect";

    /// A reader that takes nothing until it is let go: each write waits for the other end of `go` to be dropped.
    struct Stuck {
        go: mpsc::Receiver<()>,
        written: mpsc::Sender<String>,
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.go.recv();
            assert_ne!(bytes, DEFECT, "made on purpose");
            let _ = self.written.send(String::from_utf8_lossy(bytes).into_owned());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn stuck() -> (Queue, mpsc::Sender<()>, mpsc::Receiver<String>) {
        let ((let_go, go), (written, lines)) = (mpsc::channel(), mpsc::channel());
        let count = |lost: u64| format!("{lost} lost").into_bytes();
        (Queue::start(LIMITS, |_| false, Stuck { go, written }, count).unwrap(), let_go, lines)
    }

    #[test]
    fn a_line_is_written_at_once_where_nothing_waits() {
        let (queue, let_go, lines) = stuck();
        queue.push(b"the reader is stuck");
        let queue = Queue { at_once: |line| line != b"long", ..queue };
        queue.push(b"in its turn");
        drop(let_go);
        assert!(queue.flush(LONG));
        queue.push(b"at once");
        queue.push(b"long");
        assert!(queue.flush(LONG));
        let queued: Vec<_> = lines.try_iter().collect();
        assert_eq!(queued, ["the reader is stuck", "in its turn", "long"], "the other one went by no thread");
    }

    #[test]
    fn a_stuck_reader_delays_no_thread_and_gets_the_number_of_lost_lines_later() {
        let (queue, let_go, lines) = stuck();
        for number in 0..10 {
            queue.push(format!("line {number}").as_bytes());
        }
        assert!(!queue.flush(Duration::ZERO), "nothing is written yet");
        drop(let_go);
        assert!(queue.flush(LONG));
        queue.push(b"later");
        assert!(queue.flush(LONG));
        let written: Vec<_> = lines.try_iter().collect();
        assert_eq!(written, ["line 0", "line 1", "line 2", "line 3", "6 lost", "later"]);
    }

    #[test]
    fn a_defect_in_the_writer_costs_what_it_writes_and_not_the_log() {
        let ((let_go, go), (written, lines)) = (mpsc::channel(), mpsc::channel());
        let count = |lost: u64| -> Vec<u8> { panic!("made on purpose, when {lost} were lost") };
        let queue = Queue::start(LIMITS, |_| false, Stuck { go, written }, count).unwrap();
        queue.push(DEFECT);
        for number in 1..=LIMITS.lines {
            queue.push(format!("line {number}").as_bytes());
        }
        drop(let_go);
        assert!(queue.flush(LONG), "the writer goes on");
        queue.push(b"later");
        assert!(queue.flush(LONG));
        let written: Vec<_> = lines.try_iter().collect();
        assert_eq!(written, ["line 1", "line 2", "line 3", "later"]);
    }

    #[test]
    fn lines_that_are_written_as_the_time_ends_are_written() {
        let queue = Queue { limits: LIMITS, at_once: |_| false, shared: Arc::default() };
        queue.push(b"nobody writes it");
        let waits = queue.clone();
        let flushed = thread::spawn(move || waits.flush(Duration::from_secs(2)));
        let mut state = queue.shared.state.lock();
        while !queue.shared.written.notify_one() {
            MutexGuard::unlock_fair(state);
            state = queue.shared.state.lock();
        }
        // It waits again, and nobody tells it that all is written.
        MutexGuard::unlock_fair(state);
        *queue.shared.state.lock() = State::default();
        assert!(flushed.join().unwrap());
    }

    #[test]
    fn bytes_are_bounded_as_lines_are() {
        let (queue, let_go, lines) = stuck();
        queue.push(&[b'a'; 60]);
        queue.push(&[b'b'; 60]);
        queue.push(b"short, but behind a lost one");
        drop(let_go);
        assert!(queue.flush(LONG));
        let written: Vec<_> = lines.try_iter().collect();
        assert_eq!(written, ["a".repeat(60), "2 lost".to_owned()]);
    }

    #[test]
    fn all_lines_of_many_threads_are_written_each_threads_in_order() {
        let (queue, let_go, lines) = stuck();
        drop(let_go);
        let queue = Queue { limits: Limits { lines: 1_000, bytes: 100_000 }, ..queue };
        thread::scope(|scope| {
            for name in ["a", "b"] {
                let queue = &queue;
                scope.spawn(move || (0..400).for_each(|n| queue.push(format!("{name} {n}").as_bytes())));
            }
        });
        assert!(queue.flush(LONG));
        let written: Vec<_> = lines.try_iter().collect();
        for name in ["a", "b"] {
            let of_thread: Vec<_> = written.iter().filter(|line| line.starts_with(name)).cloned().collect();
            let wanted: Vec<_> = (0..400).map(|n| format!("{name} {n}")).collect();
            assert_eq!(of_thread, wanted);
        }
    }
}
