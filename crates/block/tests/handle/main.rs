//! Handles, as their users see them.

mod any_mix;
mod calls;
mod unruly;
