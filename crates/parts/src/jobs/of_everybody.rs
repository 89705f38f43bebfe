//! The tasks of all clients, for the user of the machine.

use nonet_store::StoreError;

use nonet_api::work::TaskSummary;

use super::{JobOwner, Jobs, summary::stored};

impl Jobs {
    /// Returns the owner of a job in the table.
    pub fn owner_of(&self, id: &str) -> Option<JobOwner> {
        self.table.get(id).map(|job| job.owner.clone())
    }

    /// Returns up to `limit` tasks of these owners, newest first, with their owners: jobs in the table, and
    /// jobs that only the store has.
    pub async fn of_everybody(&self, owners: &[String], limit: usize) -> Vec<(String, TaskSummary)> {
        let of_table = self.all().into_iter().map(|job| (job.owner.key().to_string(), job.summary()));
        let mut tasks: Vec<_> = of_table.collect();
        for owner in owners {
            let rows = self.store.jobs(owner, limit).await.unwrap_or_default();
            let others = rows.into_iter().filter(|row| !self.knows(&row.id));
            let now_ms = self.clock.unix_ms();
            tasks.extend(others.map(|row| (owner.clone(), stored(row, now_ms))));
        }
        tasks.sort_by(|(_, a), (_, b)| b.since.cmp(&a.since).then(a.task_id.cmp(&b.task_id)));
        tasks.truncate(limit);
        tasks
    }

    /// Removes a finished task with its result; `false` if the task is unknown or still running.
    pub async fn remove_ended(&self, id: &str, owner: &JobOwner) -> Result<bool, StoreError> {
        let of_table = self.get(id, owner);
        if of_table.as_ref().is_some_and(|job| job.is_running()) || of_table.is_none() && self.knows(id) {
            return Ok(false);
        }
        let removed = self.store.remove_kept(id, owner.key()).await?;
        Ok(self.table.remove(id).is_some() || removed)
    }
}
