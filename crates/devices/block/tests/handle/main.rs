//! Tests of handles through their public interface.

mod any_mix;
mod calls;
#[cfg(not(miri))] // it knows no poll(2)
mod evented;
mod unruly;
