//! Handles, as their users see them.

mod any_mix;
mod calls;
#[cfg(not(miri))] // it knows no poll(2)
mod evented;
mod unruly;
