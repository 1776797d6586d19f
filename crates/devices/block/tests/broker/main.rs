//! Tests the broker with real processes: this program starts itself again as a client or as a broker, and communicates by pipes.

mod hostile;
mod life;
mod process;
mod refusals;
mod setting;
