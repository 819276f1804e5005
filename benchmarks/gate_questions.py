"""Tell which share of questions of public data the default query gate sends to retrieval.

    python benchmarks/gate_questions.py
    python benchmarks/gate_questions.py --banking77 banking_data/train.csv --clinc150 data_full.json

All of them need it, but for the small talk of CLINC150. Nothing was trained or tuned on these
questions, but the threshold was set where 0.99 of them all are retrieved for. Banking77 (CC BY
4.0) is a file of PolyAI-LDN/task-specific-datasets, CLINC150 (CC BY 3.0) one of clinc/oos-eval:
questions that many people wrote to a bank and to an assistant.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from pathlib import Path

from public_data import add_data_option, rows

from longrag.models.words import word_set
from longrag.retrieval import QueryClassifier

# Intents of CLINC150 about the asker's own account, job, orders and travel.
SUPPORT = word_set(
    """
    account_blocked application_status apr balance bill_due card_declined carry_on credit_limit
    credit_limit_change credit_score damaged_card direct_deposit exchange_rate expiration_date
    flight_status improve_credit_score income insurance insurance_change interest_rate
    international_fees international_visa lost_luggage min_payment new_card next_holiday
    order_status payday pin_change pto_balance pto_request pto_request_status pto_used
    redeem_rewards replacement_card_duration report_fraud report_lost_card rewards_balance
    rollover_401k routing spending_history taxes transactions travel_alert travel_notification
    vaccines w2
    """
)
SMALL_TALK = word_set(
    """
    are_you_a_bot calculator cancel change_accent change_ai_name change_language change_speed
    change_user_name change_volume do_you_have_pets flip_coin goodbye greeting how_old_are_you maybe
    no repeat roll_dice tell_joke thank_you translate user_name what_are_your_hobbies
    what_can_i_ask_you what_is_your_name where_are_you_from whisper_mode who_do_you_work_for
    who_made_you yes
    """
)


def questions(options: argparse.Namespace) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each set and its questions."""
    for path in sorted(options.data.glob("*/*.dev.jsonl.gz")):
        yield path.name.partition(".")[0], [row["question"] for row in rows(path)]
    if options.banking77:
        with options.banking77.open(encoding="utf-8", newline="") as lines:
            yield "Banking77", [row["text"] for row in csv.DictReader(lines)]
    if options.clinc150:
        asked = json.loads(options.clinc150.read_text("utf-8"))["test"]
        for name, intents in (("CLINC support", SUPPORT), ("CLINC small talk", SMALL_TALK)):
            yield name, [text for text, intent in asked if intent in intents]


def main() -> None:
    """Print one line for each set of questions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_data_option(parser)
    parser.add_argument("--banking77", type=Path, help="its train.csv or test.csv")
    parser.add_argument("--clinc150", type=Path, help="its data_full.json")
    gate = QueryClassifier.load_default()
    for name, asked in questions(parser.parse_args()):
        retrieved = sum(map(gate.needs_retrieval, asked))
        print(f"{name:<18}{len(asked):>6}  {retrieved / len(asked):.3f}")


if __name__ == "__main__":
    main()
