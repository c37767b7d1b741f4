//! Rows of the files → a consistent [`DataSet`], with every mistake reported rather than the first.

use std::collections::{BTreeMap, BTreeSet};

use super::files::{Files, MatchRow, PickRow, Row, Rows, StakeRow, TextFile};
use super::{
    DataSet, DataSetError, Expert, Fixture, FixtureId, Mistake, Outcomes, Pick, Played, Score,
    Stake, Team,
};

/// How far the three probabilities of a pick may sum from 1: two decimals each, rounded on their own.
pub const PROBABILITY_SUM_TOLERANCE: f64 = 0.015;

/// Decimal odds above this are taken for a slip of the pen.
const ODDS_MAX: f64 = 1_000.0;

/// Most goals of one side; the record of any first-class match is 36.
const GOALS_MAX: u8 = 40;

/// The mistakes found so far, and the file being checked.
struct Findings {
    file: String,
    mistakes: Vec<Mistake>,
}

impl Findings {
    fn in_file(&mut self, file: &TextFile) -> &mut Self {
        self.file.clone_from(&file.name);
        self
    }

    fn add(&mut self, line: Option<u64>, problem: String, hint: &str) {
        self.mistakes.push(Mistake {
            file: self.file.clone(),
            line,
            problem,
            hint: hint.to_owned(),
        });
    }
}

pub(super) fn check(files: &Files) -> Result<DataSet, DataSetError> {
    let rows = Rows::parse(files);
    // What refers to a line that could not be read would only repeat the complaint.
    if !rows.mistakes.is_empty() {
        return Err(DataSetError {
            mistakes: rows.mistakes,
        });
    }
    let mut findings = Findings {
        file: String::new(),
        mistakes: Vec::new(),
    };
    let teams = check_teams(rows.teams, findings.in_file(&files.teams));
    let (played, upcoming) = check_matches(rows.matches, &teams, findings.in_file(&files.matches));
    let stakes = check_stakes(rows.stakes, &upcoming, findings.in_file(&files.stakes));
    let experts = check_experts(rows.experts, findings.in_file(&files.experts));
    let picks = check_picks(
        rows.picks,
        &experts,
        &played,
        findings.in_file(&files.picks),
    );
    match rows.league {
        Some(league) if findings.mistakes.is_empty() => Ok(DataSet {
            league,
            teams,
            played,
            upcoming,
            stakes,
            experts,
            picks,
        }),
        _ => Err(DataSetError {
            mistakes: findings.mistakes,
        }),
    }
}

fn check_teams(rows: Vec<Row<Team>>, findings: &mut Findings) -> Vec<Team> {
    let mut ids = BTreeSet::new();
    for row in &rows {
        check_id(&row.value.id, row.line, findings);
        if !ids.insert(row.value.id.as_str()) {
            findings.add(
                Some(row.line),
                format!("the team {} stands here a second time", row.value.id),
                "give each team an id of its own",
            );
        }
    }
    if ids.len() < 2 {
        findings.add(
            None,
            "fewer than two teams".to_owned(),
            "a league needs two",
        );
    }
    rows.into_iter().map(|row| row.value).collect()
}

fn check_id(id: &str, line: u64, findings: &mut Findings) {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if id.is_empty() || !id.bytes().all(plain) {
        findings.add(
            Some(line),
            format!("the id {id:?} is not plain"),
            "use lower-case letters, digits and hyphens, such as larkmoor: it appears in query strings",
        );
    }
}

fn check_matches(
    rows: Vec<Row<MatchRow>>,
    teams: &[Team],
    findings: &mut Findings,
) -> (Vec<Played>, Vec<Fixture>) {
    let (mut played, mut upcoming) = (Vec::new(), Vec::new());
    let mut ids = BTreeSet::new();
    for Row { line, value: row } in rows {
        if !ids.insert(row.fixture_id) {
            findings.add(
                Some(line),
                format!("the fixture {} stands here a second time", row.fixture_id),
                "give each fixture a number of its own",
            );
        }
        if row.round == 0 {
            findings.add(Some(line), "round 0".to_owned(), "rounds count from 1");
        }
        let Some((home, away)) = check_sides(&row, line, teams, findings) else {
            continue;
        };
        let fixture = Fixture {
            id: row.fixture_id,
            round: row.round,
            kickoff: row.kickoff,
            home,
            away,
        };
        match (row.home_goals, row.away_goals) {
            (Some(home), Some(away)) if home <= GOALS_MAX && away <= GOALS_MAX => {
                played.push(Played {
                    fixture,
                    score: Score { home, away },
                })
            }
            (Some(home), Some(away)) => findings.add(
                Some(line),
                format!("a score of {home}:{away}"),
                "goals are at most 40 a side",
            ),
            (None, None) => upcoming.push(fixture),
            (Some(_), None) | (None, Some(_)) => findings.add(
                Some(line),
                "the goals of one side only".to_owned(),
                "give both, or leave both empty until it is played",
            ),
        }
    }
    if played.is_empty() {
        findings.add(
            None,
            "no match with a score".to_owned(),
            "strengths are estimated from results: give at least one, better a hundred",
        );
    }
    played.sort_by_key(|match_| (match_.fixture.kickoff, match_.fixture.id));
    upcoming.sort_by_key(|fixture| (fixture.kickoff, fixture.id));
    (played, upcoming)
}

fn check_sides(
    row: &MatchRow,
    line: u64,
    teams: &[Team],
    findings: &mut Findings,
) -> Option<(Team, Team)> {
    let mut find = |column: &str, id: &str| {
        let team = teams.iter().find(|team| team.id == id).cloned();
        if team.is_none() {
            findings.add(
                Some(line),
                format!("column {column}: no team has the id {id:?}"),
                "use an id of teams.csv, or add the team there",
            );
        }
        team
    };
    let (home, away) = (find("home", &row.home), find("away", &row.away));
    if row.home == row.away {
        findings.add(
            Some(line),
            format!("{} plays itself", row.home),
            "home and away are two teams",
        );
        return None;
    }
    home.zip(away)
}

fn check_stakes(
    rows: Vec<Row<StakeRow>>,
    upcoming: &[Fixture],
    findings: &mut Findings,
) -> BTreeMap<FixtureId, Outcomes<Stake>> {
    let mut given: BTreeMap<FixtureId, Outcomes<Option<Stake>>> = BTreeMap::new();
    for Row { line, value: row } in rows {
        if !upcoming.iter().any(|fixture| fixture.id == row.fixture_id) {
            findings.add(
                Some(line),
                format!("no upcoming fixture has the number {}", row.fixture_id),
                "use a fixture_id of matches.csv whose goals are empty",
            );
            continue;
        }
        let outcomes = given.entry(row.fixture_id).or_default();
        let place = match row.outcome {
            super::Outcome::Home => &mut outcomes.home,
            super::Outcome::Draw => &mut outcomes.draw,
            super::Outcome::Away => &mut outcomes.away,
        };
        let stake = Stake {
            bets: row.bets,
            stake_eur: row.stake_eur,
        };
        if place.replace(stake).is_some() {
            findings.add(
                Some(line),
                format!("fixture {} has this outcome a second time", row.fixture_id),
                "give each outcome of a fixture once",
            );
        }
    }
    let mut stakes = BTreeMap::new();
    for fixture in upcoming {
        let outcomes = given.get(&fixture.id).copied().unwrap_or_default();
        let complete = outcomes
            .home
            .zip(outcomes.draw)
            .zip(outcomes.away)
            .map(|((home, draw), away)| Outcomes { home, draw, away })
            .filter(|all| {
                [all.home, all.draw, all.away]
                    .iter()
                    .any(|stake| stake.stake_eur > 0)
            })
            .filter(|all| {
                [all.home, all.draw, all.away]
                    .iter()
                    .any(|stake| stake.bets > 0)
            });
        match complete {
            Some(complete) => {
                stakes.insert(fixture.id, complete);
            }
            None => findings.add(
                None,
                format!("the upcoming fixture {} lacks stakes", fixture.id),
                "give a line each for home, draw and away, with bets and stake_eur above 0 in at least one",
            ),
        }
    }
    stakes
}

fn check_experts(rows: Vec<Row<Expert>>, findings: &mut Findings) -> Vec<Expert> {
    let mut ids = BTreeSet::new();
    for row in &rows {
        check_id(&row.value.id, row.line, findings);
        if !ids.insert(row.value.id.as_str()) {
            findings.add(
                Some(row.line),
                format!("the expert {} stands here a second time", row.value.id),
                "give each expert an id of its own",
            );
        }
    }
    rows.into_iter().map(|row| row.value).collect()
}

fn check_picks(
    rows: Vec<Row<PickRow>>,
    experts: &[Expert],
    played: &[Played],
    findings: &mut Findings,
) -> Vec<Pick> {
    let results: BTreeMap<FixtureId, &Played> = played
        .iter()
        .map(|match_| (match_.fixture.id, match_))
        .collect();
    let mut seen = BTreeSet::new();
    let mut picks = Vec::with_capacity(rows.len());
    for Row { line, value: row } in rows {
        if !experts.iter().any(|expert| expert.id == row.expert) {
            findings.add(
                Some(line),
                format!("no expert has the id {:?}", row.expert),
                "use an id of experts.csv, or add the expert there",
            );
        }
        if !seen.insert((row.expert.clone(), row.fixture_id)) {
            findings.add(
                Some(line),
                format!(
                    "{} picks fixture {} a second time",
                    row.expert, row.fixture_id
                ),
                "an expert picks a fixture once",
            );
        }
        check_figures(&row, line, findings);
        let Some(result) = results.get(&row.fixture_id) else {
            findings.add(
                Some(line),
                format!("no played fixture has the number {}", row.fixture_id),
                "use a fixture_id of matches.csv with a score: a pick is scored against its result",
            );
            continue;
        };
        picks.push(Pick {
            expert_id: row.expert,
            fixture: result.fixture.clone(),
            chances: Outcomes::from([row.home, row.draw, row.away]),
            backed: row.backed,
            odds: row.odds,
            result: result.score.outcome(),
        });
    }
    picks
}

fn check_figures(row: &PickRow, line: u64, findings: &mut Findings) {
    let chances = [row.home, row.draw, row.away];
    let sum: f64 = chances.iter().sum();
    // Written so that NaN fails too.
    let sound = chances.iter().all(|chance| (0.0..=1.0).contains(chance))
        && (sum - 1.0).abs() <= PROBABILITY_SUM_TOLERANCE;
    if !sound {
        findings.add(
            Some(line),
            format!(
                "probabilities {}, {}, {} sum to {sum:.3}",
                row.home, row.draw, row.away
            ),
            "give three numbers from 0 to 1 that sum to 1",
        );
    }
    if !(row.odds > 1.0 && row.odds <= ODDS_MAX) {
        findings.add(
            Some(line),
            format!("odds of {}", row.odds),
            "decimal odds lie above 1 and at most at 1000, such as 2.45",
        );
    }
}
