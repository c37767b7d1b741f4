//! Facts of the account, one step at a time.

use super::*;

type Plain = Account<&'static str, ()>;

fn terms(limit: u64) -> WaiterTerms<()> {
    WaiterTerms {
        limit,
        version: 1,
        context: (),
    }
}

fn reply(code: Code, grant: u64, used: u64) -> Reply {
    Reply {
        code,
        grant,
        used,
        version: Some(1),
        now: 0,
        record: String::new(),
    }
}

fn begin(account: &mut Plain) -> Option<Call<()>> {
    account.begin(|waiter| *waiter != "gone")
}

#[test]
fn waiters_share_a_call_and_get_distinct_counts() {
    let (mut account, now) = (Plain::new(terms(10)), Instant::now());
    for waiter in ["a", "gone", "b", "c"] {
        assert_eq!(account.ask(waiter, 2, terms(10), now), Asked::Waiting);
    }
    let call = begin(&mut account).unwrap();
    assert_eq!((call.ack, call.rack, call.want, call.cost), (0, 0, 6, 2));
    assert_eq!(begin(&mut account), None, "one call at a time");
    let verdicts = account.settle(call.number, &reply(Code::Granted, 6, 9), now);
    let granted = |used| WaiterResult::Granted { used };
    assert_eq!(
        verdicts,
        [
            ("a", 2, granted(5)),
            ("b", 2, granted(7)),
            ("c", 2, granted(9))
        ]
    );
    assert!(account.is_idle());
}

#[test]
fn credit_of_a_lost_reply_that_is_no_whole_charge_is_returned() {
    let (mut account, now) = (Plain::new(terms(10)), Instant::now());
    for waiter in ["a", "b"] {
        account.ask(waiter, 2, terms(10), now);
    }
    let call = begin(&mut account).unwrap();
    let verdicts = account.settle(call.number, &reply(Code::Exhausted, 3, 10), now);
    assert_eq!(
        verdicts,
        [
            ("a", 2, WaiterResult::Granted { used: 9 }),
            ("b", 2, WaiterResult::Exhausted { used: 9 })
        ]
    );
    let settling = begin(&mut account).unwrap();
    assert_eq!((settling.ack, settling.rack, settling.want), (3, 1, 0));
}

#[test]
fn waiters_with_other_costs_wait_for_calls_of_their_own() {
    let (mut account, now) = (Plain::new(terms(10)), Instant::now());
    for (waiter, cost) in [("a", 1), ("b", 5), ("c", 1), ("d", 5), ("e", 0)] {
        account.ask(waiter, cost, terms(10), now);
    }
    let first = begin(&mut account).unwrap();
    assert_eq!((first.want, first.cost), (2, 1));
    let served = account.settle(first.number, &reply(Code::Granted, 2, 2), now);
    assert_eq!(
        served
            .iter()
            .map(|(waiter, ..)| *waiter)
            .collect::<String>(),
        "ac"
    );
    let second = begin(&mut account).unwrap();
    assert_eq!((second.want, second.cost), (10, 5));
    account.settle(second.number, &reply(Code::Exhausted, 5, 7), now);
    let third = begin(&mut account).unwrap();
    assert_eq!((third.want, third.cost), (0, 0));
    let counted = ("e", 0, WaiterResult::Granted { used: 7 });
    assert_eq!(
        account.settle(third.number, &reply(Code::Granted, 0, 7), now),
        [counted]
    );
}

#[test]
fn a_call_has_so_many_waiters_at_most_and_the_others_wait_for_the_next() {
    let (mut account, now) = (Plain::new(terms(5_000)), Instant::now());
    for _ in 0..=BATCH_MAX {
        account.ask("a", 2, terms(5_000), now);
    }
    let call = begin(&mut account).unwrap();
    assert_eq!(call.want, 2 * BATCH_MAX as u64);
    account.settle(
        call.number,
        &reply(Code::Granted, call.want, call.want),
        now,
    );
    let next = begin(&mut account).unwrap();
    assert_eq!(next.want, 2);
}

#[test]
fn only_waiters_whose_call_has_not_begun_are_dismissed() {
    let (mut account, now) = (Plain::new(terms(10)), Instant::now());
    account.ask("a", 1, terms(10), now);
    let call = begin(&mut account).unwrap();
    account.ask("b", 1, terms(10), now);
    account.ask("c", 2, terms(10), now);
    assert_eq!(account.dismiss(), ["b", "c"]);
    assert_eq!(account.dismiss(), [""; 0]);
    let granted = WaiterResult::Granted { used: 1 };
    let verdicts = account.settle(call.number, &reply(Code::Granted, 1, 1), now);
    assert_eq!(verdicts, [("a", 1, granted)]);
    assert!(account.is_idle());
}

#[test]
fn waiters_with_other_terms_wait_for_the_next_call() {
    let (mut account, now) = (Plain::new(terms(10)), Instant::now());
    account.ask("a", 1, terms(10), now);
    account.ask("b", 1, terms(20), now);
    let call = begin(&mut account).unwrap();
    assert_eq!((call.want, call.terms.limit), (1, 10));
    account.settle(call.number, &reply(Code::Granted, 1, 1), now);
    let call = begin(&mut account).unwrap();
    assert_eq!((call.want, call.terms.limit), (1, 20));
}

#[test]
fn the_reply_of_an_abandoned_call_is_not_used_and_what_it_granted_goes_back() {
    let (mut account, now) = (Plain::new(terms(10)), Instant::now());
    account.ask("a", 3, terms(10), now);
    let lost = begin(&mut account).unwrap();
    assert_eq!(account.abandon(lost.number, now), ["a"]);
    assert!(!account.is_idle());
    assert_eq!(
        account.settle(lost.number, &reply(Code::Granted, 3, 3), now),
        []
    );
    let settling = begin(&mut account).unwrap();
    assert_eq!((settling.ack, settling.rack, settling.want), (0, 0, 0));
    account.settle(settling.number, &reply(Code::Granted, 3, 3), now);
    let back = begin(&mut account).unwrap();
    assert_eq!((back.ack, back.rack, back.want), (3, 3, 0));
    account.settle(back.number, &reply(Code::Granted, 0, 0), now);
    assert_eq!(begin(&mut account), None);
    assert!(account.look_for_late_calls(now), "it may run later");
    assert_eq!(begin(&mut account), None);
    let nearly_over = now + LATE_CALL_LASTS - Duration::from_millis(1);
    assert!(account.look_for_late_calls(nearly_over));
    let look = begin(&mut account).unwrap();
    account.settle(look.number, &reply(Code::Granted, 0, 0), nearly_over);
    assert!(!account.look_for_late_calls(now + LATE_CALL_LASTS));
    assert!(begin(&mut account).is_some(), "it may have run only now");
}

#[test]
fn a_reply_that_may_be_of_before_a_loss_settles_nothing() {
    let (mut account, now) = (Plain::new(terms(10)), Instant::now());
    account.ask("a", 3, terms(10), now);
    let charge = begin(&mut account).unwrap();
    account.repeat();
    account.settle(charge.number, &reply(Code::Granted, 3, 3), now);
    assert!(!account.is_stored());
    let again = begin(&mut account).unwrap();
    assert_eq!((again.ack, again.rack, again.want), (3, 0, 0));
    account.settle(again.number, &reply(Code::Granted, 0, 3), now);
    assert!(account.is_stored() && account.is_idle());
}

#[test]
fn a_denial_holds_for_a_second_for_costs_above_the_remainder_only() {
    let (mut account, now) = (Plain::new(terms(10)), Instant::now());
    account.ask("a", 5, terms(10), now);
    let call = begin(&mut account).unwrap();
    account.settle(call.number, &reply(Code::Exhausted, 2, 10), now);
    let denied = Asked::Denied {
        waiter: "b",
        used: 8,
    };
    assert_eq!(account.ask("b", 3, terms(10), now), denied);
    assert_eq!(
        account.ask("b", 2, terms(10), now),
        Asked::Waiting,
        "it fits"
    );
    let later = now + DENIAL_LASTS;
    assert_eq!(account.ask("b", 3, terms(10), later), Asked::Waiting);
}

#[test]
fn a_denial_ends_with_a_newer_record_a_larger_limit_or_an_own_refund() {
    let now = Instant::now();
    let exhausted = || {
        let mut account = Plain::new(terms(1));
        account.ask("a", 2, terms(1), now);
        let call = begin(&mut account).unwrap();
        account.settle(call.number, &reply(Code::Exhausted, 0, 1), now);
        assert!(matches!(
            account.ask("b", 1, terms(1), now),
            Asked::Denied { .. }
        ));
        account
    };
    let newer = WaiterTerms {
        version: 2,
        ..terms(1)
    };
    assert_eq!(exhausted().ask("b", 1, newer, now), Asked::Waiting);
    assert_eq!(exhausted().ask("b", 1, terms(2), now), Asked::Waiting);
    let mut account = exhausted();
    assert_eq!(account.refund(1), Some(0));
    assert_eq!(account.ask("b", 1, terms(1), now), Asked::Waiting);
    assert_eq!(begin(&mut account).unwrap().rack, 1);
}

#[test]
fn units_served_without_the_store_take_the_place_of_the_lost_charge_that_ran_after_all() {
    let (mut account, now) = (Plain::new(terms(10)), Instant::now());
    account.ask("a", 1, terms(10), now);
    account.ask("b", 1, terms(10), now);
    let call = begin(&mut account).unwrap();
    // "a" stops waiting and is served without the store.
    account.serve_without_store(1);
    account.leave_out(|waiter| *waiter != "a");
    let verdicts = account.settle(call.number, &reply(Code::Granted, 2, 2), now);
    assert_eq!(verdicts, [("b", 1, WaiterResult::Granted { used: 2 })]);
    assert_eq!(account.marks(), (2, 0), "two units for two requests");
}

#[test]
fn a_waiter_whose_unit_was_taken_meanwhile_waits_for_the_next_call() {
    let (mut account, now) = (Plain::new(terms(10)), Instant::now());
    account.ask("a", 1, terms(10), now);
    let call = begin(&mut account).unwrap();
    account.serve_without_store(1);
    let verdicts = account.settle(call.number, &reply(Code::Granted, 1, 1), now);
    assert_eq!(verdicts, [], "not refused: the store refused nothing");
    let next = begin(&mut account).unwrap();
    assert_eq!((next.ack, next.want), (1, 1));
}

#[test]
fn what_was_served_without_the_store_is_settled_by_a_call_that_includes_it() {
    let (mut account, now) = (Plain::new(terms(10)), Instant::now());
    account.serve_without_store(2);
    let call = begin(&mut account).unwrap();
    account.serve_without_store(3);
    assert_eq!(account.offline(), 5);
    account.settle(call.number, &reply(Code::Granted, 0, 2), now);
    assert_eq!((account.offline(), account.is_stored()), (3, false));
    account.withdraw(3);
    assert_eq!((account.offline(), account.marks()), (0, (5, 3)));
}

#[test]
fn a_count_is_read_again_by_a_call_although_the_store_has_everything() {
    let (mut account, then) = (Plain::new(terms(10)), Instant::now());
    let now = then + Duration::from_secs(1);
    assert!(!account.read_again(now), "it has no count");
    account.ask("a", 1, terms(10), then);
    let call = begin(&mut account).unwrap();
    account.settle(call.number, &reply(Code::Granted, 1, 1), then);
    assert!(!account.read_again(then), "it is not that old");
    assert!(account.read_again(now));
    assert!(account.is_stored() && account.is_due());
    let call = begin(&mut account).unwrap();
    assert_eq!((call.ack, call.rack, call.want), (1, 0, 0));
    account.settle(call.number, &reply(Code::Granted, 0, 7), now);
    assert_eq!(account.used_since(now), Some(7));
    assert!(account.is_idle());
}

#[test]
fn units_served_and_refunded_during_a_call_change_nothing_of_its_count() {
    let (mut account, now) = (Plain::new(terms(50)), Instant::now());
    account.ask("a", 1, terms(50), now);
    let call = begin(&mut account).unwrap();
    account.serve_without_store(5);
    account.refund(4);
    assert_eq!(account.offline(), 1);
    account.leave_out(|_| false);
    // The store had 10, and granted one more, which covers one of those that were served.
    account.settle(call.number, &reply(Code::Granted, 1, 11), now);
    let known = account.known().unwrap().used;
    assert_eq!(known + account.offline(), 11 + 4 - 4);
    account.ask("b", 1, terms(10), now);
    let call = begin(&mut account).unwrap();
    account.refund(1);
    let verdicts = account.settle(call.number, &reply(Code::Exhausted, 0, 10), now);
    assert_eq!(verdicts, [("b", 1, WaiterResult::Exhausted { used: 9 })]);
    assert_eq!(account.refused(1, &terms(10)), None, "the refund left room");
}

#[test]
fn the_last_refusal_of_the_store_outlives_the_denial_but_not_a_refund_or_a_larger_limit() {
    let (mut account, now) = (Plain::new(terms(10)), Instant::now());
    account.ask("a", 5, terms(10), now);
    let call = begin(&mut account).unwrap();
    account.settle(call.number, &reply(Code::Exhausted, 2, 10), now);
    assert_eq!(account.refused(3, &terms(10)), Some(8));
    assert_eq!(account.refused(2, &terms(10)), None, "it fits");
    assert_eq!(account.refused(3, &terms(11)), None);
    account.refund(1);
    assert_eq!(account.refused(3, &terms(10)), None);
}

#[test]
fn a_known_count_contains_what_was_merged_for_others_and_is_never_lowered_by_it() {
    let (mut account, now) = (Plain::new(terms(50)), Instant::now());
    account.note_merged(9);
    assert_eq!(account.known(), None, "the store has not counted it");
    account.ask("a", 1, terms(50), now);
    let call = begin(&mut account).unwrap();
    account.settle(call.number, &reply(Code::Granted, 1, 1), now);
    for (merged, known) in [(41, 41), (7, 41)] {
        account.note_merged(merged);
        assert_eq!(account.used_since(now), Some(known));
    }
}
