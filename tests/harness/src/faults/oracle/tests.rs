use super::*;

const RESET: u64 = 1_795_305_600;
const DATE: &str = "2026-11-21";
const MS: Duration = Duration::from_millis(1);

/// Facts that a test spoils: three calls of a key with a limit of three, all served, and a fourth that was refused.
struct Cooked {
    facts: Facts,
    start: Instant,
}

impl Cooked {
    fn new() -> Cooked {
        let mut cooked = Cooked {
            facts: Facts {
                keys: vec![KeyFacts {
                    id: "key".into(),
                    limit: 3,
                }],
                gateways: 3,
                cold_percent: 2,
                timeout: 400 * MS,
                patience: 500 * MS,
                ..Facts::default()
            },
            // Far enough from the machine's start that anything may lie before it.
            start: Instant::now() + Duration::from_secs(100),
        };
        for remaining in [2, 1, 0] {
            cooked.call(0, 200, Some(remaining));
        }
        cooked.call(1, 429, Some(0));
        cooked.counted(3);
        cooked
    }

    fn at(&self, milliseconds: u32) -> Instant {
        self.start + MS * milliseconds
    }

    /// A call that takes half of the ten milliseconds after the one before.
    fn call(&mut self, gateway: usize, status: u16, remaining: Option<u64>) -> u64 {
        let id = self.facts.seen.len() as u64;
        let began = self.at(id as u32 * 10);
        self.facts.seen.push(Seen {
            id,
            key: 0,
            gateway,
            began,
            ended: began + 5 * MS,
            output: Some(SeenAnswer {
                status,
                remaining,
                reset: Some(RESET),
            }),
        });
        let units = u64::from(status == 200);
        if units > 0 {
            self.facts.forwarded.insert(id, 1);
        }
        self.facts.logged.push(Logged {
            id,
            status,
            units,
            store_wait: MS,
        });
        id
    }

    /// The same without an answer.
    fn unanswered(&mut self, gateway: usize) -> u64 {
        let id = self.call(gateway, 500, None);
        self.facts.seen[id as usize].output = None;
        self.facts.logged.pop();
        id
    }

    fn counted(&mut self, units: u64) {
        self.facts.counts.insert((0, DATE.into()), units);
    }

    fn kill(&mut self, gateway: usize, milliseconds: u32) {
        let at = self.at(milliseconds);
        self.facts.kills.push(Kill {
            gateway,
            from: at,
            at,
            back: at + 20 * MS,
            owing_since: at,
            forgets: false,
        });
    }

    fn costs(&mut self, cost: Cost) {
        self.facts.effects.push(Effect { keys: None, cost });
    }

    #[track_caller]
    fn agrees(&self) {
        assert_eq!(self.facts.judge().violations, Vec::<String>::new());
        assert!(self.facts.is_settled());
    }

    #[track_caller]
    fn disagrees(&self, part: &str) {
        let violations = self.facts.judge().violations;
        assert!(
            violations.iter().any(|one| one.contains(part)),
            "{violations:?}"
        );
    }
}

#[test]
fn what_is_right_is_judged_right_and_figured() {
    let cooked = Cooked::new();
    cooked.agrees();
    let figures = cooked.facts.judge().figures;
    assert_eq!(
        (figures.calls, figures.served, figures.exhausted),
        (4, 3, 1)
    );
    assert_eq!((figures.above, figures.lost), (0, 0));
    assert_eq!(cooked.facts.used_up().len(), 1);
}

#[test]
fn one_unit_above_the_limit_is_found_also_where_the_store_counts_it() {
    let mut cooked = Cooked::new();
    cooked.call(2, 200, Some(0));
    cooked.counted(4);
    cooked.disagrees("was served 4 units on 2026-11-21: its limit is 3 and the bound 0");
}

#[test]
fn one_unit_not_counted_and_one_too_many_are_found() {
    for units in [2, 4] {
        let mut cooked = Cooked::new();
        cooked.counted(units);
        cooked.disagrees(&format!("the store counts {units} units of key"));
        assert!(!cooked.facts.is_settled());
    }
    let mut cooked = Cooked::new();
    cooked.facts.counts.clear();
    cooked.disagrees("the store counts 0 units");
    assert_eq!(cooked.facts.judge().figures.lost, 3);
}

#[test]
fn units_on_another_day_are_found() {
    let mut cooked = Cooked::new();
    cooked.facts.counts.clear();
    cooked.facts.counts.insert((0, "2026-11-20".into()), 3);
    cooked.disagrees("the store counts 0 units of key 2026-11-21");
}

#[test]
fn a_401_is_found_and_a_429_before_the_limit_was_reached() {
    let mut cooked = Cooked::new();
    cooked.call(0, 401, None);
    cooked.disagrees("was answered 401");
    let mut cooked = Cooked::new();
    cooked.facts.keys[0].limit = 4;
    cooked.disagrees("was refused as used up, but only 3 calls of 4 had been made");
}

#[test]
fn a_500_costs_nothing_and_one_that_was_counted_is_found() {
    let mut cooked = Cooked::new();
    let id = cooked.call(0, 500, Some(1));
    cooked.agrees();
    cooked.facts.forwarded.insert(id, 1);
    cooked.facts.failed.insert(id);
    cooked.agrees();
    cooked.counted(4);
    cooked.disagrees("the store counts 4 units");
}

#[test]
fn a_call_without_an_answer_is_found_unless_its_gateway_was_killed() {
    let mut cooked = Cooked::new();
    cooked.unanswered(2);
    cooked.disagrees("had no answer, and nobody was killed");
    cooked.kill(1, 42);
    cooked.disagrees("had no answer, and nobody was killed");
    cooked.kill(2, 42);
    cooked.agrees();
}

#[test]
fn what_a_killed_gateway_had_in_flight_may_be_counted_and_nothing_else() {
    let mut cooked = Cooked::new();
    cooked.facts.keys[0].limit = 4;
    cooked.facts.seen.remove(3);
    cooked.facts.logged.remove(3);
    cooked.unanswered(2);
    cooked.facts.seen[3].id = 3;
    cooked.kill(2, 32);
    for (units, agrees) in [(2, false), (3, true), (4, true), (5, false)] {
        cooked.counted(units);
        assert_eq!(cooked.facts.is_settled(), agrees, "{units}");
    }
    // Once the upstream has it, it was charged.
    cooked.facts.forwarded.insert(3, 1);
    for (units, agrees) in [(3, false), (4, true), (5, false)] {
        cooked.counted(units);
        assert_eq!(cooked.facts.is_settled(), agrees, "{units}");
    }
}

#[test]
fn refunds_of_a_killed_gateways_last_seconds_may_stay_and_older_ones_not() {
    let mut cooked = Cooked::new();
    cooked.call(0, 500, Some(1));
    cooked.counted(4);
    assert!(!cooked.facts.is_settled());
    cooked.kill(0, 60);
    assert!(cooked.facts.is_settled());
    cooked.facts.kills.clear();
    cooked.kill(0, 60_000);
    assert!(!cooked.facts.is_settled());
}

#[test]
fn only_an_emptied_store_excuses_a_count_below_and_only_by_the_killed_gateways_last_calls() {
    let mut cooked = Cooked::new();
    cooked.kill(0, 60);
    cooked.counted(0);
    assert!(!cooked.facts.is_settled());
    cooked.facts.kills[0].forgets = true;
    assert!(cooked.facts.is_settled());
    cooked.facts.kills.clear();
    cooked.kill(1, 60);
    cooked.facts.kills[0].forgets = true;
    assert!(!cooked.facts.is_settled());
}

#[test]
fn what_a_failover_lost_is_excused_where_its_gateway_was_killed_before_it_could_report_it_again() {
    let lost = |from: u32, until: u32, killed: u32| {
        let mut cooked = Cooked::new();
        cooked.kill(0, killed);
        let (from, until) = (Some(cooked.at(from)), cooked.at(until));
        cooked.costs(Cost::Lost { from, until });
        cooked.counted(0);
        cooked.facts
    };
    assert!(lost(0, 50, 60).is_settled());
    assert!(!lost(59, 70, 60).is_settled(), "its calls were before");
    assert!(
        !lost(61, 70, 60).is_settled(),
        "its successor had read them"
    );
    assert!(!lost(0, 50, 3_051).is_settled(), "it had sent them again");
    let mut facts = lost(0, 50, 60);
    facts.effects[0].keys = Some(BTreeSet::from([1]));
    assert!(!facts.is_settled(), "another key's");
}

#[test]
fn a_gateway_that_was_away_may_have_served_its_share_of_what_it_last_reported_and_no_more() {
    let mut cooked = Cooked::new();
    cooked.facts.keys[0].limit = 12;
    cooked.facts.seen.truncate(3);
    for (seen, remaining) in cooked.facts.seen.iter_mut().zip([11, 10, 9]) {
        seen.output = seen.output.map(|output| SeenAnswer {
            remaining: Some(remaining),
            ..output
        });
    }
    let (from, until) = (cooked.at(26), cooked.at(1_000));
    cooked.costs(Cost::Away {
        gateways: vec![0],
        from,
        until,
    });
    // Three were served; nine more reach the limit, and three more its share: a third of the eleven that were left.
    for _ in 0..12 {
        cooked.call(1, 200, None);
    }
    assert_eq!(cooked.facts.bound(0, DATE), 3);
    cooked.counted(15);
    assert!(cooked.facts.is_settled());
    cooked.call(1, 200, None);
    cooked.counted(16);
    cooked.disagrees("was served 16 units");
    // What it reported while it was away was of its share.
    cooked.call(0, 500, Some(12));
    assert_eq!(cooked.facts.bound(0, DATE), 3);
    // A gateway that had reported nothing has the cold part: two hundredths of twelve are none.
    cooked.facts.effects.clear();
    cooked.costs(Cost::Away {
        gateways: vec![2],
        from,
        until,
    });
    assert_eq!(cooked.facts.bound(0, DATE), 0);
}

#[test]
fn what_the_store_lost_may_be_granted_again_and_only_to_the_keys_concerned() {
    let mut cooked = Cooked::new();
    let until = cooked.at(12);
    cooked.costs(Cost::Lost { from: None, until });
    assert_eq!(cooked.facts.bound(0, DATE), 2);
    let (from, until) = (Some(cooked.at(8)), cooked.at(100));
    cooked.facts.effects.clear();
    cooked.costs(Cost::Lost { from, until });
    assert_eq!(cooked.facts.bound(0, DATE), 2);
    cooked.facts.effects[0].keys = Some(BTreeSet::from([1]));
    assert_eq!(cooked.facts.bound(0, DATE), 0);
}

#[test]
fn a_call_served_without_the_upstream_or_twice_by_it_is_found() {
    let mut cooked = Cooked::new();
    cooked.facts.forwarded.remove(&1);
    cooked.disagrees("call 1 of key at gateway 0 was served, forwarded 0 times");
    cooked.facts.forwarded.insert(1, 2);
    cooked.disagrees("forwarded 2 times");
    let mut cooked = Cooked::new();
    cooked.facts.forwarded.insert(3, 1);
    cooked.disagrees("was refused and forwarded");
    cooked.facts.forwarded.insert(99, 1);
    cooked.disagrees("nobody sent 99");
}

#[test]
fn an_access_log_that_differs_is_found() {
    let mut cooked = Cooked::new();
    cooked.facts.logged[0].units = 0;
    cooked.disagrees("access log: call 0 of key at gateway 0 has status 200 and 0 units");
    let mut cooked = Cooked::new();
    cooked.facts.logged.remove(1);
    cooked.disagrees("access log: call 1 of key at gateway 0 is missing");
    cooked.facts.unlogged.insert(0);
    cooked.agrees();
}

#[test]
fn a_wait_beyond_timeout_and_quantum_is_found() {
    let mut cooked = Cooked::new();
    cooked.facts.logged[2].store_wait = cooked.facts.patience + QUANTUM + MS;
    cooked.disagrees("call 2 waited");
    assert_eq!(cooked.facts.judge().figures.wait_at(500), 1);
}

#[test]
fn a_call_that_the_store_did_not_answer_in_time_excuses_its_gateway_and_key() {
    let mut cooked = Cooked::new();
    cooked.facts.keys[0].limit = 3;
    for _ in 0..2 {
        cooked.call(0, 200, None);
    }
    cooked.counted(5);
    cooked.disagrees("was served 5 units");
    // At the first call nothing had been reported, so all was left.
    cooked.facts.logged[0].store_wait = 400 * MS;
    cooked.agrees();
    assert_eq!(cooked.facts.judge().figures.stalls, 1);
    // At the third, one unit was left by what its gateway had reported.
    cooked.facts.logged[0].store_wait = MS;
    cooked.facts.logged[2].store_wait = 400 * MS;
    cooked.facts.seen[0].output = cooked.facts.seen[1].output;
    cooked.disagrees("its limit is 3 and the bound 1");
}
