//! Two processes on one file against a map: whatever they charge, refund and refuse, fold or leave half done, every reading is
//! that of the map at every instant.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::policy::api_key::{KeyId, os_entropy};
use crate::policy::calendar::{Calendar, Day};
use crate::policy::key_record::KeyRecord;
use crate::policy::key_record::tests::key_of;
use crate::store::chain::ChainItem;
use crate::store::embedded::group::{Group, Statements};
use crate::store::embedded::inbox::{Refund, Refusals};
use crate::store::embedded::keys::{self, Follower};
use crate::store::embedded::{Durability, closing, schema, usage};
use crate::store::sqlite::signed;
use crate::store::{Charge, Decision, Keeping, KeyEntry, Receipt, Totals};

const KEYS: usize = 4;
const ENDPOINTS: [&str; 2] = ["/markets", "/insights"];
const LIMIT: u64 = 25;

/// One thing in a group.
#[derive(Debug, Clone)]
enum Item {
    Charge {
        key: usize,
        day: usize,
        endpoint: usize,
        cost: u32,
    },
    Refund {
        which: usize,
    },
    Refuse {
        key: usize,
        day: usize,
        endpoint: usize,
    },
}

#[derive(Debug, Clone)]
enum Step {
    /// A group of one of the processes: committed, rolled back, or left by a process that dies.
    Group {
        process: usize,
        items: Vec<Item>,
        end: End,
    },
    /// Some turns of one process, of so many rows.
    Fold {
        process: usize,
        turns: usize,
        rows: usize,
    },
    /// All of it in one transaction, as before something is carried here.
    FoldAll { process: usize },
    /// Half of the work, and the process dies.
    Die { process: usize },
}

#[derive(Debug, Clone, Copy)]
enum End {
    Committed,
    RolledBack,
    Dead,
}

fn item() -> impl Strategy<Value = Item> {
    let place = (0..KEYS, 0..2_usize, 0..ENDPOINTS.len());
    prop_oneof![
        6 => (place.clone(), 1..5_u32)
            .prop_map(|((key, day, endpoint), cost)| Item::Charge { key, day, endpoint, cost }),
        2 => (0..8_usize).prop_map(|which| Item::Refund { which }),
        1 => place.prop_map(|(key, day, endpoint)| Item::Refuse { key, day, endpoint }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let process = 0..2_usize;
    let end = prop_oneof![
        8 => Just(End::Committed),
        1 => Just(End::RolledBack),
        1 => Just(End::Dead),
    ];
    prop_oneof![
        8 => (process.clone(), proptest::collection::vec(item(), 1..5), end)
            .prop_map(|(process, items, end)| Step::Group { process, items, end }),
        6 => (process.clone(), 1..8_usize, 1..3_usize)
            .prop_map(|(process, turns, rows)| Step::Fold { process, turns, rows }),
        1 => process.clone().prop_map(|process| Step::FoldAll { process }),
        1 => process.prop_map(|process| Step::Die { process }),
    ]
}

/// What a process has: dropped, it has died, whatever was under way.
struct Inside<'c> {
    connection: &'c Connection,
    statements: Statements<'c>,
    folder: Folder,
    keys: Follower,
}

type Work = Box<dyn FnOnce(&mut Inside<'_>) + Send>;

/// A process: a thread with a connection of its own.
struct Process {
    path: PathBuf,
    work: Sender<Work>,
    ended: Receiver<()>,
}

impl Process {
    fn start(path: &Path) -> Process {
        let (work, to_do) = channel::<Work>();
        let (at_work, ended) = channel::<()>();
        let file = path.to_owned();
        std::thread::spawn(move || {
            let _at_work = at_work;
            let connection = schema::connect(&file, Durability::default()).unwrap();
            let mut statements = Statements::prepare(&connection).unwrap();
            statements.prepare_counts().unwrap();
            let mut inside = Inside {
                connection: &connection,
                statements,
                folder: Folder::new(),
                keys: Follower::new(true),
            };
            while let Ok(work) = to_do.recv() {
                work(&mut inside);
            }
        });
        Process {
            path: path.to_owned(),
            work,
            ended,
        }
    }

    fn does<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Inside<'_>) -> T + Send + 'static,
    ) -> T {
        let (sender, result) = channel();
        let work = move |inside: &mut Inside<'_>| sender.send(work(inside)).unwrap();
        self.work.send(Box::new(work)).unwrap();
        result.recv().unwrap()
    }

    fn dies(&mut self) {
        let next = Process::start(&self.path);
        let Process { work, ended, .. } = std::mem::replace(self, next);
        drop(work);
        // Its connection is closed.
        assert!(ended.recv().is_err());
    }
}

struct World {
    days: [Day; 2],
    keys: Vec<Arc<KeyEntry>>,
    endpoints: Vec<Arc<str>>,
    /// What each key has of each endpoint and day.
    model: BTreeMap<(usize, usize, usize), Totals>,
    receipts: Vec<((usize, usize, usize), u32)>,
}

/// What was decided in a group.
type Decided = Vec<Option<u64>>;

impl World {
    fn used(&self, key: usize, day: usize) -> u64 {
        let of_day = self
            .model
            .iter()
            .filter(|((k, d, _), _)| (*k, *d) == (key, day));
        of_day
            .map(|(_, totals)| totals.charged - totals.refunded)
            .sum()
    }

    /// What the group's items are for the store, and what the model makes of them if they are committed.
    fn plan(&self, items: &[Item]) -> (Vec<Job>, Decided, World) {
        let mut after = World {
            days: self.days,
            keys: self.keys.clone(),
            endpoints: self.endpoints.clone(),
            model: self.model.clone(),
            receipts: self.receipts.clone(),
        };
        let (mut jobs, mut output) = (Vec::new(), Vec::new());
        for item in items {
            let (job, expected) = after.apply(item);
            jobs.extend(job);
            output.extend(expected);
        }
        (jobs, output, after)
    }

    fn apply(&mut self, item: &Item) -> (Option<Job>, Option<Option<u64>>) {
        match *item {
            Item::Charge {
                key,
                day,
                endpoint,
                cost,
            } => {
                let job = Job::Charge(Charge {
                    key: self.keys[key].clone(),
                    day: self.days[day],
                    limit: LIMIT,
                    cost,
                    endpoint: self.endpoints[endpoint].clone(),
                });
                let used = self.used(key, day) + u64::from(cost);
                if used > LIMIT {
                    return (Some(job), Some(None));
                }
                let place = (key, day, endpoint);
                let totals = self.model.entry(place).or_default();
                totals.requests += 1;
                totals.charged += u64::from(cost);
                self.receipts.push((place, cost));
                (Some(job), Some(Some(used)))
            }
            Item::Refund { which } => {
                if self.receipts.is_empty() {
                    return (None, None);
                }
                let (place, units) = self.receipts.remove(which % self.receipts.len());
                self.model.get_mut(&place).unwrap().refunded += u64::from(units);
                let (key, day, endpoint) = place;
                let receipt = Receipt {
                    key: self.keys[key].record.id,
                    tier: self.keys[key].record.tier.clone(),
                    day: self.days[day],
                    endpoint: self.endpoints[endpoint].clone(),
                    units,
                };
                (Some(Job::Refund(receipt)), None)
            }
            Item::Refuse { key, day, endpoint } => {
                self.model
                    .entry((key, day, endpoint))
                    .or_default()
                    .refused_tier += 1;
                let record = &self.keys[key].record;
                let place = (
                    record.id,
                    self.days[day],
                    record.tier.clone(),
                    self.endpoints[endpoint].clone(),
                );
                let refused = Totals {
                    refused_tier: 1,
                    ..Totals::default()
                };
                (Some(Job::Refuse([(place, refused)].into())), None)
            }
        }
    }

    /// Everything that can be read of the file is the model's.
    fn check(&self, connection: &Connection, processes: &[Process]) {
        let dates = self.days.map(|day| day.date);
        let (keys, _) = usage::keys_and_days(connection, dates[0], dates[1]).unwrap();
        let proofs = usage::prove(connection, dates[0], dates[1], &keys).unwrap();
        assert!(
            proofs.iter().all(|proof| proof.faults.is_empty()),
            "{proofs:?}"
        );
        let mut read = BTreeMap::new();
        for proof in proofs {
            let key = self
                .keys
                .iter()
                .position(|key| key.record.id == proof.usage.key)
                .unwrap();
            let day = dates
                .iter()
                .position(|date| *date == proof.usage.date)
                .unwrap();
            assert_eq!(proof.usage.used, self.used(key, day));
            for (name, totals) in proof.usage.endpoints {
                let endpoint = ENDPOINTS.iter().position(|known| *known == name).unwrap();
                read.insert((key, day, endpoint), totals);
            }
        }
        assert_eq!(read, self.model);
        self.check_export(connection);
        for (number, process) in processes.iter().enumerate() {
            for (key, entry) in self.keys.iter().enumerate() {
                let (day, id) = (self.days[number], entry.record.id);
                let used = process.does(move |inside| {
                    let now = || Timestamp::from_second(day.start).unwrap();
                    let Inside {
                        statements, keys, ..
                    } = inside;
                    let mut group =
                        Group::begin(statements, keys, Keeping::default(), now).unwrap();
                    let used = group.used(id, day).unwrap().unwrap();
                    group.commit().unwrap();
                    used
                });
                assert_eq!(used, self.used(key, number));
            }
        }
    }

    /// The rows of the ledger as they are exported, in their order.
    fn check_export(&self, connection: &Connection) {
        let (sender, mut pieces) = tokio::sync::mpsc::channel(100);
        let dates = self.days.map(|day| day.date);
        let instant = connection.unchecked_transaction().unwrap();
        closing::read(&instant, Some((dates[0], dates[1])), &sender).unwrap();
        drop(sender);
        let mut rows = Vec::new();
        while let Ok(piece) = pieces.try_recv() {
            let ChainItem::Ledger(row) = piece else {
                panic!("{piece:?}");
            };
            rows.push((row.date, row.key, row.endpoint, row.numbers[1]));
        }
        let mut expected: Vec<_> = self
            .model
            .iter()
            .map(|((key, day, endpoint), totals)| {
                let id = self.keys[*key].record.id.to_string();
                (
                    dates[*day],
                    id,
                    ENDPOINTS[*endpoint].to_owned(),
                    signed(totals.charged),
                )
            })
            .collect();
        expected.sort();
        assert_eq!(rows, expected);
    }
}

/// An item as the store has it.
enum Job {
    Charge(Charge),
    Refund(Receipt),
    Refuse(Refusals),
}

/// One group; returns the results of its charges. The middle of a day that is charged decides what time it is.
fn run_group(inside: &mut Inside<'_>, jobs: Vec<Job>, end: End) -> Decided {
    let Inside {
        statements,
        folder,
        keys,
        ..
    } = inside;
    // The days overlap in time, so that one group has entries of both.
    let now = || Timestamp::from_second(NOW).unwrap();
    let mut group = Group::begin(statements, keys, Keeping::default(), now).unwrap();
    let mut output = Vec::new();
    for job in jobs {
        match job {
            Job::Charge(charge) => output.push(match group.charge(&charge).unwrap() {
                Ok(Decision::Granted { used, .. }) => Some(used),
                Ok(Decision::Exhausted { .. }) => None,
                other => panic!("{other:?}"),
            }),
            Job::Refund(receipt) => {
                let refund = Refund {
                    receipt,
                    answer: None,
                };
                group.refund(&refund).unwrap();
            }
            Job::Refuse(refusals) => group.refused(&refusals).unwrap(),
        }
    }
    match end {
        End::Committed => folder.note(group.commit().unwrap().entries),
        End::RolledBack => group.roll_back(),
        // The transaction stays open until the connection is closed.
        End::Dead => {}
    }
    output
}

const NOW: i64 = 1_763_719_200;

/// Two days around the same instant, as two dates.
fn two_days() -> [Day; 2] {
    let calendar = Calendar::of_zone("UTC").unwrap();
    let day = calendar
        .day_at(Timestamp::from_second(NOW).unwrap())
        .unwrap();
    let before = Day {
        date: day.date.yesterday().unwrap(),
        ..day
    };
    [before, day]
}

fn run_history(steps: Vec<Step>) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("touchline.db");
    schema::create_file(&path).unwrap();
    let mut connection = schema::connect(&path, Durability::default()).unwrap();
    schema::prepare(&mut connection, &path, "UTC").unwrap();
    let now = Timestamp::from_second(NOW).unwrap();
    let mut world = World {
        days: two_days(),
        keys: Vec::new(),
        endpoints: ENDPOINTS.map(Arc::from).to_vec(),
        model: BTreeMap::new(),
        receipts: Vec::new(),
    };
    for _ in 0..KEYS {
        let (_, record) = key_of("pro");
        let record = KeyRecord {
            id: KeyId::generate(&mut os_entropy),
            digest: crate::policy::api_key::KeyDigest::of(
                KeyId::generate(&mut os_entropy).as_str().as_bytes(),
            ),
            ..record
        };
        let made = keys::create(&connection, record, now).unwrap();
        let (record, _) = made.unwrap();
        world.keys.push(KeyEntry::new(record));
    }
    let mut processes = [Process::start(&path), Process::start(&path)];
    for step in steps {
        match step {
            Step::Group {
                process,
                items,
                end,
            } => {
                let (jobs, expected, after) = world.plan(&items);
                let output = processes[process].does(move |inside| {
                    if process == 1 {
                        // It keeps no count that it can read again.
                        inside.statements.known_max = 0;
                    }
                    run_group(inside, jobs, end)
                });
                assert_eq!(output, expected);
                match end {
                    End::Committed => world = after,
                    End::RolledBack => {}
                    End::Dead => processes[process].dies(),
                }
            }
            Step::Fold {
                process,
                turns,
                rows,
            } => processes[process].does(move |inside| {
                for _ in 0..turns {
                    inside.folder.step(inside.connection, rows).unwrap();
                }
            }),
            Step::FoldAll { process } => processes[process].does(|inside| {
                let behavior = TransactionBehavior::Immediate;
                let transaction = Transaction::new_unchecked(inside.connection, behavior).unwrap();
                fold_all(&transaction).unwrap();
                transaction.commit().unwrap();
                assert_eq!(first_and_last(inside.connection).unwrap(), None);
            }),
            Step::Die { process } => processes[process].dies(),
        }
        world.check(&connection, &processes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn any_history_of_two_processes_is_that_of_a_map_at_every_instant(
        steps in proptest::collection::vec(step(), 1..40)
    ) {
        run_history(steps);
    }
}
