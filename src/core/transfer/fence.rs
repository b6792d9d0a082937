//! The root's claim: is this run still the newest of its job?
//!
//! The claims are on the global file system (if there is one), which may hang for a long time. A decision on the global level waits for it.
//! All other decisions ask a dedicated thread to look, and wait for the answer only for [`LOOK_LIMIT`]: claims stop waste, names protect
//! the data, so a level that does not need the global file system continues without an answer.

use crate::base::Clock;
use crate::base::log;
use crate::base::sync::{Condition, Lock};
use crate::tier::TierId;
use crate::tier::claims::{Claim, ClaimError, Claims, HEARTBEAT};
use std::time::{Duration, Instant};

/// How long a decision waits for the thread that looks at the claims on its behalf.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
/// How long the thread that looks sleeps when nobody asks.
const IDLE: Duration = Duration::from_millis(500);

/// The result of a look at the claims.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// This run is the newest.
    Newest,
    /// Another run has taken over: nothing may be committed or deleted any more.
    Superseded(String),
    /// The question could not be answered.
    Unknown(String),
}

/// A run's claim, and the looks at it (root only).
pub(super) struct Fence {
    claims: Claims,
    claim: Claim,
    looks: Lock<Looks>,
    changed: Condition,
    /// When the claim was last renewed, if no thread does so.
    renewed: Lock<Duration>,
}

#[derive(Default)]
struct Looks {
    /// How many looks have been asked for; `answered` counts those that were answered.
    asked: u64,
    answered: u64,
    /// When the current look began.
    since: Option<Instant>,
    standing: Option<Standing>,
}

impl Fence {
    pub fn new((claims, claim): (Claims, Claim)) -> Fence {
        Fence { claims, claim, looks: Lock::default(), changed: Condition::new(), renewed: Lock::default() }
    }

    /// Looks at the claims now.
    fn look(&self, clock: &dyn Clock) -> Standing {
        match self.claims.check(&self.claim, clock) {
            Ok(()) => Standing::Newest,
            Err(error @ ClaimError::Superseded { .. }) => Standing::Superseded(error.to_string()),
            Err(error) => Standing::Unknown(error.to_string()),
        }
    }

    /// Makes the thread look, and waits for the result. A look that has been hanging since an earlier question has used up its time.
    fn ask(&self) -> Standing {
        let mut looks = self.looks.lock();
        looks.asked += 1;
        let mine = looks.asked;
        let deadline = looks.since.unwrap_or_else(Instant::now) + LOOK_LIMIT;
        self.changed.notify_all();
        loop {
            if looks.answered >= mine
                && let Some(standing) = &looks.standing
            {
                return standing.clone();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Standing::Unknown(format!("the claims could not be checked within {LOOK_LIMIT:?}"));
            }
            looks = self.changed.wait_timeout(looks, left);
        }
    }

    /// Wakes the thread that looks, because it is to stop.
    pub fn wake(&self) {
        // Under the lock, the thread either has not checked yet whether to stop, or receives this signal.
        let _looks = self.looks.lock();
        self.changed.notify_all();
    }

    /// Answers the questions asked so far, or waits for one for a while.
    fn serve(&self, clock: &dyn Clock, is_stopping: impl Fn() -> bool) {
        let looks = self.looks.lock();
        let is_at_rest = |looks: &mut Looks| looks.asked == looks.answered && !is_stopping();
        let mut looks = self.changed.wait_timeout_while(looks, IDLE, is_at_rest);
        let asked = looks.asked;
        if asked == looks.answered {
            return;
        }
        looks.since = Some(Instant::now());
        drop(looks);
        let standing = self.look(clock);
        let mut looks = self.looks.lock();
        (looks.answered, looks.since, looks.standing) = (asked, None, Some(standing));
        self.changed.notify_all();
    }

    pub fn renew(&self) {
        if let Err(error) = self.claims.renew(&self.claim) {
            log::warn!("event=claim-not-renewed error={error}");
        }
    }

    /// Is this run still the newest of its job?
    ///
    /// # Blocking
    /// If `is_patient`, on the file system of the claims; otherwise at most [`LOOK_LIMIT`].
    pub fn standing(&self, is_patient: bool, clock: &dyn Clock) -> Standing {
        if is_patient { self.look(clock) } else { self.ask() }
    }

    /// Does a decision on this tier wait for the claims, however long that takes? It does if they are on the same file system, shared by
    /// all nodes: without an answer there is nothing to decide.
    pub fn is_on(&self, tier: TierId) -> bool {
        tier.spec().is_shared && self.claims.tier() == tier
    }

    /// Is it time to renew the claim? True once for each time.
    pub fn take_renewal_due(&self, now: Duration, every: Duration) -> bool {
        let mut renewed = self.renewed.lock();
        let is_due = now.saturating_sub(*renewed) >= every;
        if is_due {
            *renewed = now;
        }
        is_due
    }

    /// The loop of the thread that looks at the claims and renews ours.
    pub fn guard(&self, clock: &dyn Clock, is_stopping: impl Fn() -> bool) {
        let mut renewed = clock.now();
        while !is_stopping() {
            self.serve(clock, &is_stopping);
            if clock.now().saturating_sub(renewed) >= HEARTBEAT {
                renewed = clock.now();
                self.renew();
            }
        }
    }

    pub fn close(&self) {
        if let Err(error) = self.claims.close(&self.claim) {
            log::warn!("event=claim-not-closed error={error}");
        }
    }
}
