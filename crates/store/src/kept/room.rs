//! What goes to make room: expired entries, then the oldest of the newest entry's share until that share
//! fits, then the oldest of the largest share until all fit. Never the newest entry, and never a running job.

use super::{
    super::{
        StoreError,
        engine::{Batch, BlobName, Key, Row, Scan},
    },
    shelf::{ENTRIES, EntryBody, Shelf, Tally, tally_row},
};
use nonet_base::clock::millis;

/// The maximum number of entries. Beyond it, as beyond the limit of bytes, the oldest are removed first:
/// small entries take space as well.
const MOST_ENTRIES: usize = 10_000;
/// How many rows are read at a time.
const AT_ONCE: usize = 50;

/// Entries that may go, oldest first, read as far as needed, and what the rest takes.
pub(super) struct Room<'a> {
    shelf: &'a Shelf,
    tally: Tally,
    newest: Option<&'a Key>,
    /// Entries that have not gone.
    oldest: Vec<(Row, EntryBody)>,
    /// The number of the last row that was read.
    last: Option<u64>,
    is_all: bool,
    gone: Vec<(Row, Option<BlobName>)>,
}

impl<'a> Room<'a> {
    pub(super) fn new(shelf: &'a Shelf, tally: Tally, newest: Option<&'a Key>) -> Self {
        Self { shelf, tally, newest, oldest: Vec::new(), last: None, is_all: false, gone: Vec::new() }
    }

    /// Counts an ended entry.
    pub(super) fn enter(&mut self, entry: &EntryBody) {
        let (bytes, entries) = self.tally.entry(entry.share.clone()).or_default();
        (*bytes, *entries) = (bytes.saturating_add(entry.bytes), *entries + 1);
    }

    /// No longer counts an entry.
    pub(super) fn leave(&mut self, entry: &EntryBody) {
        if entry.is_working() {
            return;
        }
        if let Some((bytes, entries)) = self.tally.get_mut(&entry.share) {
            (*bytes, *entries) = (bytes.saturating_sub(entry.bytes), entries.saturating_sub(1));
            if *entries == 0 {
                self.tally.remove(&entry.share);
            }
        }
    }

    /// Lets an entry go.
    pub(super) fn remove(&mut self, row: Row, entry: Option<EntryBody>) {
        if let Some(entry) = &entry {
            self.leave(entry);
        }
        self.gone.push((row, entry.and_then(|entry| entry.value())));
    }

    /// Returns whether an entry has expired.
    pub(super) fn is_old(&self, entry: &EntryBody, now_ms: u64) -> bool {
        let bound = now_ms.checked_sub(millis(self.shelf.retention.age));
        bound.is_some_and(|bound| entry.aged_ms <= bound)
    }

    /// Lets entries go until the rest fits. `share` is the newest entry's, with its limit in bytes; `entries`
    /// is how many there are.
    pub(super) async fn make(
        &mut self,
        now_ms: u64,
        share: Option<(&str, u64)>,
        entries: usize,
    ) -> Result<(), StoreError> {
        let left = |room: &Self| entries.saturating_sub(room.gone.len());
        // The oldest come first, so the first one that is not old ends it.
        while let Some(at) = self.find(|_| true).await?
            && self.is_old(&self.oldest[at].1, now_ms)
        {
            self.remove_at(at);
        }
        if let Some((share, most)) = share {
            let bytes = |room: &Self| room.tally.get(share).map_or(0, |(bytes, _)| *bytes);
            while bytes(self) > most
                && let Some(at) = self.find(|entry| entry.share == share).await?
            {
                self.remove_at(at);
            }
        }
        while self.all_bytes() > self.shelf.retention.bytes
            && self.remove_of_largest(|(bytes, _)| bytes).await?
        {}
        while left(self) > MOST_ENTRIES && self.remove_of_largest(|(_, entries)| entries).await? {}
        Ok(())
    }

    fn all_bytes(&self) -> u64 {
        self.tally.values().fold(0, |all, (bytes, _)| all.saturating_add(*bytes))
    }

    /// Lets the oldest entry of the largest share go. Returns false if no share has one that may go.
    async fn remove_of_largest(&mut self, size: impl Fn((u64, u64)) -> u64) -> Result<bool, StoreError> {
        let mut shares: Vec<(u64, String)> =
            self.tally.iter().map(|(share, sizes)| (size(*sizes), share.clone())).collect();
        shares.sort();
        for (_, share) in shares.into_iter().rev() {
            if let Some(at) = self.find(|entry| entry.share == share).await? {
                self.remove_at(at);
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn remove_at(&mut self, at: usize) {
        let (row, entry) = self.oldest.remove(at);
        self.remove(row, Some(entry));
    }

    /// Returns the place of the oldest entry that may go and fits.
    async fn find(&mut self, fits: impl Fn(&EntryBody) -> bool) -> Result<Option<usize>, StoreError> {
        let mut from = 0;
        loop {
            if let Some(at) = self.oldest[from..].iter().position(|(_, entry)| fits(entry)) {
                return Ok(Some(from + at));
            }
            if self.is_all {
                return Ok(None);
            }
            from = self.oldest.len();
            self.read_on().await?;
        }
    }

    async fn read_on(&mut self) -> Result<(), StoreError> {
        let scan = Scan { after: self.last, ..Scan::table(ENTRIES) }.limit(AT_ONCE);
        let rows = self.shelf.engine.scan(scan).await?.rows;
        self.is_all = rows.is_empty();
        self.last = rows.last().map(|row| row.number).or(self.last);
        for row in rows {
            let is_gone = self.gone.iter().any(|(gone, _)| gone.key == row.key);
            if self.newest == Some(&row.key) || is_gone {
                continue;
            }
            match EntryBody::of(&row) {
                Some(entry) if entry.is_working() => {}
                Some(entry) => self.oldest.push((row, entry)),
                None => self.gone.push((row, None)),
            }
        }
        Ok(())
    }

    /// Adds to a batch what goes, and what the rest takes. Returns the values that go.
    pub(super) fn write(self, batch: &mut Batch, stored: Option<&Row>) -> Vec<BlobName> {
        self.gone.iter().for_each(|(row, _)| batch.delete(row));
        match tally_row(&self.tally, stored) {
            Some(row) => batch.put(row, stored),
            // It must be the same when the batch is written.
            None => stored.into_iter().for_each(|row| batch.require(&row.key, Some(row))),
        }
        self.gone.into_iter().filter_map(|(_, value)| value).collect()
    }
}
