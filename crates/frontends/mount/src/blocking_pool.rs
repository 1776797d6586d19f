//! Threads for requests that wait for a slow disk, so that those that serve everybody never do.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

type Job = Box<dyn FnOnce() + Send>;

const THREADS_MAX: usize = 64;
const IDLE: Duration = Duration::from_secs(10);

/// A pool that grows when it is needed and shrinks when it is not.
#[derive(Clone, Default)]
pub struct BlockingPool {
    inner: Arc<PoolInner>,
}

#[derive(Default)]
struct PoolInner {
    state: Mutex<PoolState>,
    wake: Condvar,
}

#[derive(Default)]
struct PoolState {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl BlockingPool {
    /// Returns whether no job runs or waits.
    pub fn is_idle(&self) -> bool {
        let state = self.inner.state.lock();
        state.jobs.is_empty() && state.idle == state.threads
    }

    /// Returns the number of jobs that wait for a thread.
    pub fn waiting(&self) -> usize {
        self.inner.state.lock().jobs.len()
    }

    /// Does `job` on some other thread.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.inner.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.idle < state.jobs.len() && state.threads < THREADS_MAX {
            let inner = self.inner.clone();
            let started = std::thread::Builder::new().name("blocking".into()).spawn(move || inner.work());
            match started {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads > 0 => tracing::warn!(%error, "no more threads"),
                Err(error) => {
                    tracing::warn!(%error, "no thread for a slow request; it is done here");
                    if let Some(job) = state.jobs.pop_back() {
                        drop(state);
                        job();
                    }
                    return;
                }
            }
        }
        self.inner.wake.notify_one();
    }
}

impl PoolInner {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let over = self.wake.wait_for(&mut state, IDLE).timed_out();
            state.idle -= 1;
            if over && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn jobs_beyond_the_threads_wait_and_are_counted() {
        let pool = BlockingPool::default();
        let held = Arc::new(Mutex::new(()));
        let holding = held.lock();
        let (begun, begins) = channel();
        for _ in 0..THREADS_MAX + 3 {
            let (held, begun) = (Arc::clone(&held), begun.clone());
            pool.run(move || {
                begun.send(()).expect("awaited");
                drop(held.lock());
            });
        }
        begins.iter().take(THREADS_MAX).for_each(drop);
        assert_eq!((pool.waiting(), pool.is_idle()), (3, false));
        drop(holding);
        begins.iter().take(3).for_each(drop);
        assert_eq!(pool.waiting(), 0);
    }
}
