//! Opens the configured cache.

use std::sync::Arc;

use cachedfs::{Config, Error, Instance};

/// Attaches to the cache, and creates it if it does not exist.
///
/// # Errors
/// Errors of [`Instance::open`].
pub fn open_cache(config: &Config) -> Result<Arc<Instance>, Error> {
    Instance::open(config)
}
