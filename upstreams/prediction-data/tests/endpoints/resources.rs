//! What the resources say, and which rows a filter keeps.

use prediction_data::data_set::DataSet;
use serde_json::Value;

use crate::ask::{LISTS, data, service, ten_thousandths};

#[tokio::test]
async fn the_probabilities_of_every_prediction_sum_to_exactly_one() {
    let service = service();
    for row in data(&service, "predictions?per_page=100").await.rows() {
        let id = row["fixture"]["id"].as_u64().unwrap();
        let prediction = data(&service, &format!("predictions/{id}")).await.json()["data"].clone();
        assert_eq!(
            ten_thousandths(prediction["result"].as_object().unwrap().values()),
            10_000,
            "{id}"
        );
        let both = prediction["both_teams_to_score"].as_object().unwrap();
        assert_eq!(ten_thousandths(both.values()), 10_000, "{id}");
        let lines = prediction["total_goals"].as_array().unwrap();
        assert_eq!(
            lines
                .iter()
                .map(|line| line["line"].as_f64().unwrap())
                .collect::<Vec<_>>(),
            [1.5, 2.5, 3.5]
        );
        for line in lines {
            assert_eq!(
                ten_thousandths([&line["over"], &line["under"]]),
                10_000,
                "{id}"
            );
        }
        let scores = prediction["correct_scores"].as_array().unwrap();
        let listed = scores.iter().map(|score| &score["probability"]);
        assert_eq!(
            ten_thousandths(listed.chain([&prediction["other_scores"]])),
            10_000,
            "{id}"
        );
    }
}

#[tokio::test]
async fn the_probabilities_of_every_market_sum_to_one_and_fair_odds_are_their_inverse() {
    let service = service();
    for page in 1..=4 {
        for market in data(&service, &format!("markets?per_page=100&page={page}"))
            .await
            .rows()
        {
            let selections = market["selections"].as_array().unwrap();
            let sum = ten_thousandths(selections.iter().map(|selection| &selection["probability"]));
            // The selections of a double chance overlap: each result is in two of them.
            let expected = if market["market"] == "double_chance" {
                20_000
            } else {
                10_000
            };
            assert_eq!(sum, expected, "{market}");
            for selection in selections {
                let probability = selection["probability"].as_f64().unwrap();
                let odds = selection["fair_odds"].as_f64().unwrap();
                assert!(
                    (odds - 1.0 / probability).abs() <= 0.005 + 1e-9,
                    "{selection}"
                );
            }
            assert_eq!(
                market["line"].is_null(),
                market["market"] != "total_goals",
                "{market}"
            );
        }
    }
}

#[tokio::test]
async fn a_prediction_on_its_own_says_all_that_the_list_says_and_what_it_rests_on() {
    let service = service();
    let listed = data(&service, "predictions").await.rows()[0].clone();
    let id = listed["fixture"]["id"].as_u64().unwrap();
    let alone = data(&service, &format!("predictions/{id}")).await.json()["data"].clone();
    for (field, value) in listed.as_object().unwrap() {
        assert_eq!(&alone[field], value, "{field}");
    }
    assert_eq!(alone["basis"]["results"], 192);
    let basis = &alone["basis"];
    let number = |value: &Value| value.as_f64().unwrap();
    let expected = number(&basis["league_home_goals"])
        * number(&basis["home"]["attack"])
        * number(&basis["away"]["defence"]);
    assert!(
        (expected - number(&alone["expected_goals"]["home"])).abs() < 0.01,
        "{alone}"
    );
}

#[tokio::test]
async fn filters_keep_the_rows_they_name_and_no_others() {
    let service = service();
    for list in ["predictions", "sentiment"] {
        let answer = data(&service, &format!("{list}?team=larkmoor")).await;
        assert_eq!(answer.total(), 6, "{list}");
        for row in answer.rows() {
            let sides = [&row["fixture"]["home"]["id"], &row["fixture"]["away"]["id"]];
            assert!(sides.iter().any(|side| **side == "larkmoor"), "{row}");
        }
        assert_eq!(
            data(&service, &format!("{list}?round=25")).await.total(),
            8,
            "{list}"
        );
        assert_eq!(
            data(&service, &format!("{list}?round=25&team=larkmoor"))
                .await
                .total(),
            1,
            "{list}"
        );
        assert_eq!(
            data(&service, &format!("{list}?round=1")).await.total(),
            0,
            "played: {list}"
        );
    }
    let goals = data(&service, "markets?market=total_goals&fixture_id=2501")
        .await
        .rows();
    assert_eq!(
        goals
            .iter()
            .map(|market| market["line"].as_f64().unwrap())
            .collect::<Vec<_>>(),
        [1.5, 2.5, 3.5]
    );
    assert_eq!(data(&service, "markets?fixture_id=9999").await.total(), 0);
    assert_eq!(data(&service, "insights?kind=crowd").await.total(), 48);
    assert_eq!(
        data(&service, "insights?kind=form&fixture_id=2501")
            .await
            .total(),
        2
    );
    assert_eq!(data(&service, "sentiment?fixture_id=2501").await.total(), 1);
}

#[tokio::test]
async fn a_span_of_dates_takes_in_its_first_and_its_last_instant() {
    let service = service();
    // Round 25: Friday 27 November 19:00 to Sunday 29 November 16:30, UTC.
    let count = async |query: &str| {
        data(&service, &format!("predictions?{query}"))
            .await
            .total()
    };
    assert_eq!(count("from=2026-11-27&to=2026-11-29").await, 8);
    assert_eq!(
        count("from=2026-11-27T19:00:00Z&to=2026-11-29T16:30:00Z").await,
        8
    );
    assert_eq!(
        count("from=2026-11-27T19:00:01Z&to=2026-11-29T16:29:59Z").await,
        6
    );
    assert_eq!(count("from=2026-11-28&to=2026-11-28").await, 5);
    assert_eq!(
        count("from=2026-11-27T20:00:00%2B01:00&to=2026-11-27").await,
        1
    );
    assert_eq!(count("from=2027-06-01").await, 0);
}

#[tokio::test]
async fn two_instances_give_the_same_bytes() {
    let (one, other) = (service(), service());
    for target in LISTS.into_iter().chain(["predictions/2501"]) {
        assert_eq!(
            data(&one, target).await.body,
            data(&other, target).await.body,
            "{target}"
        );
    }
}

#[tokio::test]
async fn insights_say_how_they_were_written_and_every_figure_stands_in_the_sentence() {
    let service = service();
    for page in 1..=3 {
        for insight in data(&service, &format!("insights?per_page=100&page={page}"))
            .await
            .rows()
        {
            assert_eq!(insight["method"], "template");
            let text = insight["text"].as_str().unwrap();
            for figure in insight["figures"].as_array().unwrap() {
                // A difference is told as "more" or "fewer": without its sign, and not at all where it is 0.
                let value = figure["value"].as_f64().unwrap().abs();
                let forms = [
                    format!("{value}"),
                    format!("{value:.1}"),
                    format!("{value:.2}"),
                ];
                let told = forms.iter().any(|form| text.contains(form))
                    || (value == 0.0 && text.contains("the same"));
                assert!(told, "{insight}");
            }
        }
    }
}

#[tokio::test]
async fn sentiment_is_the_share_of_the_money_and_its_gap_to_the_model() {
    let service = service();
    let set = DataSet::embedded().unwrap();
    for row in data(&service, "sentiment?per_page=100").await.rows() {
        for shares in ["share_of_bets", "share_of_stakes", "model"] {
            assert_eq!(
                ten_thousandths(row[shares].as_object().unwrap().values()),
                10_000,
                "{row}"
            );
        }
        let id = row["fixture"]["id"].as_u64().unwrap();
        let stakes = set
            .stakes
            .iter()
            .find(|(fixture, _)| u64::from(fixture.0) == id)
            .unwrap()
            .1;
        let total = stakes.home.stake_eur + stakes.draw.stake_eur + stakes.away.stake_eur;
        assert_eq!(row["stake_eur"], total);
        let share = row["share_of_stakes"]["home"].as_f64().unwrap();
        assert!(
            (share - f64::from(stakes.home.stake_eur) / f64::from(total)).abs() <= 1e-4,
            "{row}"
        );
        let gap = share - row["model"]["home"].as_f64().unwrap();
        assert!(
            (row["crowd_minus_model"]["home"].as_f64().unwrap() - gap).abs() < 1e-9,
            "{row}"
        );
    }
}

#[tokio::test]
async fn rankings_follow_the_measure_asked_for_and_count_the_picks_in_the_span_asked_for() {
    let service = service();
    let column = async |query: &str, name: &str| -> Vec<f64> {
        let rows = data(&service, &format!("rankings{query}")).await.rows();
        rows.iter().map(|row| row[name].as_f64().unwrap()).collect()
    };
    assert!(column("", "brier").await.is_sorted());
    assert!(
        column("?by=roi", "roi")
            .await
            .is_sorted_by(|one, other| one >= other)
    );
    assert!(
        column("?by=hit_rate", "hit_rate")
            .await
            .is_sorted_by(|one, other| one >= other)
    );
    assert_eq!(column("", "rank").await[0], 1.0);
    let all: f64 = column("", "picks").await.iter().sum();
    let early: f64 = column("?to=2026-10-01", "picks").await.iter().sum();
    let late: f64 = column("?from=2026-10-02", "picks").await.iter().sum();
    assert!(early > 0.0 && late > 0.0);
    assert_eq!(early + late, all);
    assert_eq!(all, DataSet::embedded().unwrap().picks.len() as f64);
    assert!(
        column("?round=24", "picks")
            .await
            .iter()
            .all(|picks| *picks <= 8.0)
    );
    assert!(
        column("?min_picks=80", "picks")
            .await
            .iter()
            .all(|picks| *picks >= 80.0)
    );
}
