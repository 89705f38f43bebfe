//! Which work fits into an account, and which is refused.

use super::*;

fn account(quotas: Quotas) -> Arc<Account> {
    Account::of_session(quotas)
}

#[test]
fn a_place_is_free_again_once_it_is_dropped() {
    let account = account(Quotas { calls: 2, ..Quotas::default() });
    let (one, other) = (account.call(), account.call());
    assert_eq!(account.call().err(), Some(QuotaExceeded::Calls(2)));
    drop(one);
    assert!(account.call().is_ok());
    drop(other);
    assert_eq!(*account.used.lock(), PlacesInUse::default());
}

#[test]
fn calls_and_jobs_together_stay_below_both_quotas() {
    let account = account(Quotas { calls: 3, jobs: 2, ..Quotas::default() });
    let mut jobs = Vec::new();
    for _ in 0..5 {
        let call = account.call().expect("there is room for a call");
        jobs.push(call.into_job(&account));
    }
    assert_eq!(account.jobs(), 5);
    assert_eq!(account.call().err(), Some(QuotaExceeded::Jobs(5)));
    assert_eq!(account.job().err(), Some(QuotaExceeded::Jobs(5)));
    // There is always room for requests about the work in progress.
    assert!(account.request().is_ok());
    jobs.pop();
    assert!(account.call().is_ok());
    assert_eq!(account.job().err(), Some(QuotaExceeded::Jobs(4)));
    jobs.clear();
    let launched = account.job().expect("there is room for a job").into_job(&account);
    assert_eq!((account.jobs(), account.used.lock().calls), (1, 0));
    drop(launched);
    assert_eq!(*account.used.lock(), PlacesInUse::default());
}

#[test]
fn everything_has_an_end() {
    let account = account(Quotas { calls: 2, sessions: 1, ..Quotas::default() });
    let requests: Vec<QuotaPlace> = (0..4).map(|_| account.request().expect("there is room")).collect();
    assert_eq!(account.request().err(), Some(QuotaExceeded::Requests(4)));
    let session = account.session().expect("the first one");
    assert_eq!(account.session().err(), Some(QuotaExceeded::Sessions(1)));
    drop((requests, session));
    assert!(account.request().is_ok() && account.session().is_ok());
}

#[test]
fn a_refusal_says_what_to_end() {
    for exhausted in [
        QuotaExceeded::Calls(64),
        QuotaExceeded::Jobs(50),
        QuotaExceeded::Requests(128),
        QuotaExceeded::Sessions(100),
    ] {
        let fault = Fault::from(exhausted);
        assert!(fault.code == FaultCode::RateLimited && fault.retryable && fault.retry_after_ms.is_some());
        assert!(fault.message.contains("quotas.") || exhausted == QuotaExceeded::Requests(128), "{fault}");
        assert!(fault.next_step.is_some() && fault.message.contains("Nothing was sent"), "{fault}");
    }
}

#[test]
fn sessions_of_one_token_share_an_account() {
    let (accounts, quotas) = (Accounts::default(), Quotas::default());
    let (mine, other) = (BearerToken::new("0123456789abcdef"), BearerToken::new("fedcba9876543210"));
    let first = accounts.of(None, AccountHolder::Token(mine), quotas);
    let less = Quotas { calls: 1, ..quotas };
    let again = accounts.of(None, AccountHolder::Token(mine), less);
    assert!(Arc::ptr_eq(&first, &again) && first.quotas() == less, "the figures of now");
    assert_ne!(first, accounts.of(None, AccountHolder::Token(other), quotas));
    assert_ne!(account(quotas), account(quotas), "sessions do not");
    // The store recognises the account after a restart, but its name does not reveal the token.
    let name = first.name().to_string();
    assert_eq!(*name, **Accounts::default().of(None, AccountHolder::Token(mine), quotas).name());
    assert!(name.starts_with("token-") && !name.contains("0123456789"), "{name}");
}
