//! One run of a plan: which calls may start, and which are held back.

use std::{collections::BTreeSet, sync::Arc};

use super::Plan;

/// How a plan is run.
#[derive(Clone, Debug)]
pub struct Pace {
    /// How many calls run at a time, at least one.
    pub concurrency: usize,
    /// Whether the first failure prevents further starts.
    pub fail_fast: bool,
    /// The lane of each call. Of the calls in one lane only one runs at a time; calls without a lane run
    /// freely.
    pub lanes: Vec<Option<Arc<str>>>,
}

/// An event in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScheduleEvent {
    /// The run begins or resumes. Always the first event, unless the run was cancelled before.
    Begin,
    /// A started call has ended.
    Ended {
        /// The position of the call in the plan.
        at: usize,
        /// How the call ended. A failure also holds back its dependants, unless the call is optional.
        outcome: StepOutcome,
    },
    /// The run was cancelled. Its driver cancels the running calls and still reports their ends.
    Cancelled,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StepOutcome {
    /// The call has a result that is not an error.
    Succeeded,
    /// The call ended with an error. Its dependants run only if it is optional.
    Failed,
    /// Its `when` skipped it. Its dependants run.
    Skipped,
    /// It waits for the user, who answers after this run.
    Open,
}

/// An instruction to the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScheduleEffect {
    /// Start a call.
    Start(usize),
    /// Report that a call will not run.
    HoldBack(usize, HoldReason),
    /// Withdraw started calls that were not sent yet.
    Halt,
    /// Everything that can run has ended, and this call waits for the user.
    Park(usize),
    /// Every call has ended or was held back.
    Finished,
}

/// Why a call does not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HoldReason {
    /// The run was cancelled before the call started.
    #[error("cancelled")]
    Cancelled,
    /// An earlier failure prevents further starts.
    #[error("another call failed and `fail_fast` is set")]
    FailFast,
    /// A dependency, named by its id, failed or did not run.
    #[error("`{0}`, which it needs, failed")]
    NeedFailed(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    Ended(StepOutcome),
}

impl Phase {
    const FAILED: Self = Self::Ended(StepOutcome::Failed);
    const OPEN: Self = Self::Ended(StepOutcome::Open);

    /// Whether the call is over for this run.
    fn is_over(self) -> bool {
        matches!(self, Self::Ended(outcome) if outcome != StepOutcome::Open)
    }
}

/// The state of one run.
#[derive(Debug)]
pub struct Schedule<'a> {
    plan: &'a Plan,
    pace: Pace,
    phases: Vec<Phase>,
    cancelled: bool,
    halted: bool,
    finished: bool,
}

impl<'a> Schedule<'a> {
    /// Creates a run that has not begun.
    pub fn new(plan: &'a Plan, pace: Pace) -> Self {
        let phases = vec![Phase::Waiting; plan.calls().len()];
        Self { plan, pace, phases, cancelled: false, halted: false, finished: false }
    }

    /// Creates a run in which some calls have already ended.
    pub fn resumed(plan: &'a Plan, pace: Pace, ended: &[(usize, StepOutcome)]) -> Self {
        let mut schedule = Self::new(plan, pace);
        for (at, outcome) in ended {
            if let Some(phase) = schedule.phases.get_mut(*at) {
                *phase = Phase::Ended(*outcome);
            }
            let optional = plan.calls().get(*at).is_some_and(|call| call.optional);
            schedule.halted |= schedule.pace.fail_fast && *outcome == StepOutcome::Failed && !optional;
        }
        schedule
    }

    /// Processes an event. Returns the resulting effects in order.
    pub fn step(&mut self, event: ScheduleEvent) -> Vec<ScheduleEffect> {
        let mut effects = Vec::new();
        match event {
            ScheduleEvent::Begin => {}
            ScheduleEvent::Cancelled => self.cancelled = true,
            ScheduleEvent::Ended { at, outcome } => {
                if self.phases.get(at) != Some(&Phase::Running) {
                    return effects;
                }
                self.phases[at] = Phase::Ended(outcome);
                let harmful = outcome == StepOutcome::Failed && !self.plan.calls()[at].optional;
                if harmful && self.pace.fail_fast && !self.halted {
                    self.halted = true;
                    effects.push(ScheduleEffect::Halt);
                }
            }
        }
        // A call that is held back may be a dependency of an earlier one.
        while self.hold_back(&mut effects) {}
        self.start(&mut effects);
        if !self.finished && !self.phases.contains(&Phase::Running) {
            // Nothing runs, so the remaining calls wait for an open one.
            let open = self.phases.iter().position(|phase| *phase == Phase::OPEN);
            self.finished = true;
            effects.push(open.map_or(ScheduleEffect::Finished, ScheduleEffect::Park));
        }
        effects
    }

    fn hold_back(&mut self, effects: &mut Vec<ScheduleEffect>) -> bool {
        let before = effects.len();
        for at in 0..self.phases.len() {
            if matches!(self.phases[at], Phase::Waiting | Phase::OPEN)
                && let Some(reason) = self.reason(at)
            {
                self.phases[at] = Phase::FAILED;
                effects.push(ScheduleEffect::HoldBack(at, reason));
            }
        }
        effects.len() > before
    }

    fn reason(&self, at: usize) -> Option<HoldReason> {
        if self.cancelled {
            return Some(HoldReason::Cancelled);
        }
        if self.halted {
            return Some(HoldReason::FailFast);
        }
        let calls = self.plan.calls();
        let failed = |need: &&usize| self.phases[**need] == Phase::FAILED && !calls[**need].optional;
        let need = self.plan.needs(at).iter().find(failed)?;
        Some(HoldReason::NeedFailed(calls[*need].id.clone()))
    }

    fn start(&mut self, effects: &mut Vec<ScheduleEffect>) {
        let all = |phase: Phase| -> Vec<usize> {
            (0..self.phases.len()).filter(|at| self.phases[*at] == phase).collect()
        };
        let (running, waiting, open) = (all(Phase::Running), all(Phase::Waiting), all(Phase::OPEN));
        let mut room = self.pace.concurrency.max(1).saturating_sub(running.len());
        let lane = |at: usize| self.pace.lanes.get(at).cloned().flatten();
        let mut busy: BTreeSet<Arc<str>> = running.into_iter().chain(open).filter_map(lane).collect();
        for at in waiting {
            let over = |need: &usize| self.phases[*need].is_over();
            let lane = lane(at);
            let free = lane.as_ref().is_none_or(|lane| !busy.contains(lane));
            if room > 0 && free && self.plan.needs(at).iter().all(over) {
                room -= 1;
                busy.extend(lane);
                effects.push(ScheduleEffect::Start(at));
            }
        }
        for effect in effects.iter() {
            if let ScheduleEffect::Start(at) = effect {
                self.phases[*at] = Phase::Running;
            }
        }
    }
}
