//! The cache that a configuration means.

use std::sync::Arc;

use cachedfs::{Config, Error, Instance};

/// Takes part in it; it is made if nobody does yet.
///
/// # Errors
/// What [`Instance::open`] says.
pub fn open_cache(config: &Config) -> Result<Arc<Instance>, Error> {
    Instance::open(config)
}
