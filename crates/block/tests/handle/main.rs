//! Handles, as their users see them.

mod calls;
