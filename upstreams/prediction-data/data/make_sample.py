#!/usr/bin/env python3
"""Writes the sample data set beside this file. Run it again and the same bytes come out.

Everything here is invented: the league, the clubs, the forecasters, the results, the stakes. Results are drawn from Poisson
distributions whose strengths (STRENGTHS below) the service never sees: it has to estimate them from the results, as it would
with real ones. The seed is fixed, and only `random.random()` is used, whose sequence Python keeps stable between versions.
"""

import csv
import json
import math
import pathlib
import random
from datetime import datetime, timedelta

HERE = pathlib.Path(__file__).parent
RNG = random.Random(20261120)

# id, name, short name, attack, defence (goals conceded; below 1 is better), both relative to the league's average of 1.
STRENGTHS = [
    ("larkmoor", "Larkmoor United", "LAR", 1.52, 0.71),
    ("vennport", "Vennport City", "VEN", 1.38, 0.78),
    ("thornquay", "Thornquay Town", "THO", 1.27, 0.90),
    ("eldermarrow", "Eldermarrow FC", "ELD", 1.18, 0.82),
    ("kestrelby", "Kestrelby Wanderers", "KES", 1.12, 0.97),
    ("halvenstead", "Halvenstead Albion", "HAL", 1.05, 0.88),
    ("quillhaven", "Quillhaven Rangers", "QUI", 1.03, 1.05),
    ("brackmere", "Brackmere Athletic", "BRA", 0.98, 0.95),
    ("orrinmouth", "Orrinmouth Rovers", "ORR", 0.95, 1.02),
    ("saltmarrow", "Saltmarrow Mariners", "SAL", 0.93, 1.10),
    ("pellarby", "Pellarby Forest", "PEL", 0.90, 0.99),
    ("skarnholt", "Skarnholt FC", "SKA", 0.86, 1.08),
    ("ravelbrook", "Ravelbrook County", "RAV", 0.82, 1.12),
    ("millenfold", "Millenfold Olympic", "MIL", 0.78, 1.20),
    ("wyvernmoor", "Wyvernmoor Victoria", "WYV", 0.72, 1.18),
    ("dunmarrow", "Dunmarrow Harriers", "DUN", 0.65, 1.31),
]
HOME_GOALS, AWAY_GOALS = 1.50, 1.18
ROUNDS, ROUNDS_PLAYED, FIRST_ROUND_WITH_PICKS = 30, 24, 13
FIRST_SATURDAY = datetime(2026, 6, 6)
# Hours after Saturday 00:00 UTC: Friday evening, Saturday, Sunday.
KICKOFFS_HOURS = [-5.0, 12.5, 15.0, 15.0, 15.0, 17.5, 38.0, 40.5]

# id, name, share of fixtures picked, how far the forecasts stray from the truth, how much they lean to the favourite.
EXPERTS = [
    ("boxscore-badger", "Boxscore Badger", 0.97, 0.10, 1.00),
    ("halfspace-heron", "Halfspace Heron", 0.90, 0.16, 1.05),
    ("offside-otter", "Offside Otter", 0.80, 0.24, 0.95),
    ("woodwork-wren", "Woodwork Wren", 0.85, 0.30, 1.30),
    ("nutmeg-newt", "Nutmeg Newt", 0.60, 0.40, 0.80),
    ("stoppage-stoat", "Stoppage Stoat", 0.95, 0.45, 1.55),
    ("backheel-bear", "Backheel Bear", 0.70, 0.60, 1.10),
    ("crossbar-crane", "Crossbar Crane", 0.88, 0.75, 1.45),
]
OUTCOMES = ["home", "draw", "away"]
BOOKMAKER_MARGIN = 1.05


def poisson(mean):
    """One draw, by inversion."""
    left, goals, chance = RNG.random(), 0, math.exp(-mean)
    while left > chance and goals < 12:
        left -= chance
        goals += 1
        chance *= mean / goals
    return goals


def noise():
    """Roughly normal, mean 0, standard deviation 1."""
    return sum(RNG.random() for _ in range(12)) - 6.0


def means(home, away):
    return HOME_GOALS * home[3] * away[4], AWAY_GOALS * away[3] * home[4]


def outcome_chances(home, away):
    mean_home, mean_away = means(home, away)
    chances = [0.0, 0.0, 0.0]
    for h in range(13):
        for a in range(13):
            chance = math.exp(-mean_home - mean_away) * mean_home**h * mean_away**a / math.factorial(h) / math.factorial(a)
            chances[0 if h > a else 1 if h == a else 2] += chance
    return [chance / sum(chances) for chance in chances]


def strayed(chances, spread, lean):
    """The chances as somebody sees them who errs by `spread` on the log scale and stretches them by the power `lean`."""
    weights = [chance**lean * math.exp(spread * noise()) for chance in chances]
    return [weight / sum(weights) for weight in weights]


def schedule():
    """Double round robin by the circle method; the second half mirrors the first."""
    teams = list(range(len(STRENGTHS)))
    half = []
    for round_index in range(len(teams) - 1):
        pairs = []
        for i in range(len(teams) // 2):
            one, other = teams[i], teams[-1 - i]
            # Teams move one place a round, so a side that depends on the place alternates; the fixed team alternates by round.
            at_home = (round_index if i == 0 else i) % 2 == 0
            pairs.append((one, other) if at_home else (other, one))
        half.append(pairs)
        teams.insert(1, teams.pop())
    return half + [[(away, home) for home, away in pairs] for pairs in half]


def kickoff(round_number, slot):
    # A week off before the last six rounds.
    weeks = round_number - 1 + (1 if round_number > ROUNDS_PLAYED else 0)
    at = FIRST_SATURDAY + timedelta(weeks=weeks, hours=KICKOFFS_HOURS[slot])
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def write(name, header, rows):
    with open(HERE / name, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)


def main():
    matches, picks, stakes = [], [], []
    for round_number, pairs in enumerate(schedule(), start=1):
        for slot, (home_index, away_index) in enumerate(pairs):
            home, away = STRENGTHS[home_index], STRENGTHS[away_index]
            fixture_id = round_number * 100 + slot + 1
            played = round_number <= ROUNDS_PLAYED
            goals = [poisson(mean) for mean in means(home, away)] if played else ["", ""]
            matches.append([fixture_id, round_number, kickoff(round_number, slot), home[0], away[0], *goals])
            chances = outcome_chances(home, away)
            if played and round_number >= FIRST_ROUND_WITH_PICKS:
                quoted = [1.0 / (chance * BOOKMAKER_MARGIN) for chance in strayed(chances, 0.06, 1.0)]
                for expert in EXPERTS:
                    if RNG.random() > expert[2]:
                        continue
                    seen = strayed(chances, expert[3], expert[4])
                    percent_home, percent_draw = round(100 * seen[0]), round(100 * seen[1])
                    percents = [percent_home, percent_draw, 100 - percent_home - percent_draw]
                    # The pick is what looks the best value at the quoted odds, unless that is a wild outsider.
                    value = [p / 100 * q if q < 6 else 0 for p, q in zip(percents, quoted)]
                    backed = value.index(max(value))
                    row = [f"{percent / 100:.2f}" for percent in percents]
                    picks.append([expert[0], fixture_id, *row, OUTCOMES[backed], f"{quoted[backed]:.2f}"])
            if not played:
                # The crowd leans to favourites and to the home side, and shuns the draw.
                crowd = strayed([chances[0] * 1.08, chances[1] * 0.72, chances[2]], 0.12, 1.25)
                total = 400 + int(RNG.random() * 2600)
                for outcome, share in zip(OUTCOMES, crowd):
                    bets = max(1, round(total * share))
                    stakes.append([fixture_id, outcome, bets, round(bets * (14 + 12 * RNG.random()))])
    write("teams.csv", ["id", "name", "short_name"], [team[:3] for team in STRENGTHS])
    write("matches.csv", ["fixture_id", "round", "kickoff", "home", "away", "home_goals", "away_goals"], matches)
    write("stakes.csv", ["fixture_id", "outcome", "bets", "stake_eur"], stakes)
    write("experts.csv", ["id", "name"], [expert[:2] for expert in EXPERTS])
    write("picks.csv", ["expert", "fixture_id", "home", "draw", "away", "backed", "odds"], picks)
    league = {
        "id": "meridian-league",
        "name": "Meridian League",
        "season": "2026/27",
        "as_of": "2026-11-20T06:00:00Z",
        "notice": "Sample data: league, clubs, forecasters, results and stakes are invented.",
    }
    (HERE / "league.json").write_text(json.dumps(league, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
