//! The files of the reads in flight.

use crate::engine::open::Open;

/// The files of reads, with the number of reads for each. Only the owner of the reads counts, so that a read changes no word that threads
/// share.
pub(super) struct ReadFiles<F>(pub(super) Vec<Option<(F, u32)>>);

impl<F: AsRef<Open>> ReadFiles<F> {
    #[inline]
    pub(super) fn get(&self, file: u32) -> Option<&Open> {
        self.0.get(file as usize)?.as_ref().map(|(file, _)| file.as_ref())
    }

    /// Adds one read of a file.
    #[inline]
    pub(super) fn take(&mut self, open: &Open, share: impl FnOnce() -> F) -> u32 {
        for (at, place) in self.0.iter_mut().enumerate() {
            if let Some((known, reads)) = place
                && std::ptr::eq((*known).as_ref(), open)
            {
                *reads += 1;
                return at as u32;
            }
        }
        self.add(share())
    }

    #[cold]
    fn add(&mut self, file: F) -> u32 {
        let at = self.0.iter().position(Option::is_none).unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[at] = Some((file, 1));
        at as u32
    }

    /// Removes one read of a file. Returns the file if no read needs it any more: closing it may take long.
    #[inline]
    pub(super) fn release(&mut self, file: u32) -> Option<F> {
        let place = self.0.get_mut(file as usize)?;
        let (_, reads) = place.as_mut()?;
        *reads -= 1;
        if *reads == 0 { place.take().map(|(file, _)| file) } else { None }
    }
}
