"""What is read of answers: each fault of the published scorer has the right value here."""

from __future__ import annotations

import pytest

from reasonknee_hf.tumor.tumor_answers import phrase, read_letter, read_number, read_yes_no, said

FOUR = [("A", "Normal"), ("B", "Mild"), ("C", "Moderate"), ("D", "A lesion is absent")]
THREE = FOUR[:3]


@pytest.mark.parametrize(
    ("answer", "letter"),
    [
        ("Answer: C", "C"),
        ("Because the spleen is large, C", "C"),
        ("Definitely A", "A"),
        ("A lesion is absent: D", "D"),
        ("c", "C"),
        ("(B)", "B"),
        ("**B**", "B"),
        ("B. Mild", "B"),
        ("The answer is C, not B.", "C"),
        ("Option A is wrong. The correct answer is (D).", "D"),
        ("I think of A.\nFinal answer: B", "B"),
        (r"So \boxed{C}", "C"),
        ("<think>A or B?</think>C", "C"),
        ("A seems right </think> B", "B"),
        ("<think>It is A, so", None),
        ("<think>x</think><answer>D</answer>", "D"),
        ("Moderate", "C"),
        ("A lesion is absent", "D"),
        ("A liver with many lesions", None),
        ("The answer is a liver lesion that has grown", None),
        ("E", None),
        ("", None),
        ("[ERROR] device: a CUDA fault", None),
    ],
)
def test_a_letter(answer, letter):
    assert read_letter(answer, FOUR) == letter


def test_a_letter_that_the_question_does_not_have_is_none():
    assert read_letter("D", THREE) is None
    assert read_letter("Answer: D", THREE) is None


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("1,234.5", 1234.5),
        ("1e3", 1000),
        (".5", 0.5),
        ("T2 stage: 3", 3),
        ("about 1,480 cm3 (normal 1,000)", 1480),
        ("-12.5 HU", -12.5),
        ("−12 HU", -12),
        ("Segment 4 holds it; the answer is 7.", 7),
        ("3.", 3),
        ("<think>12</think> 13", 13),
        ("1,2", None),
        ("none", None),
        ("1e999", None),
    ],
)
def test_a_number(answer, number):
    assert read_number(answer) == number


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ("Yes", True),
        ("no.", False),
        ("No, yes would be wrong", False),
        ("There is: yes", True),
        ("Normal", None),
        ("None seen", None),
        ("Nodule present", None),
        ("Yesterday", None),
        ("It may be yes or no", None),
        ("", None),
    ],
)
def test_yes_and_no(answer, told):
    assert read_yes_no(answer) is told


def test_reasoning_and_phrases():
    assert said("a <think>b</think> c </think> d") == "d"
    assert said("<answer>x</answer> and <answer> y </answer>") == "y"
    assert phrase(" The  same-sized, (both)!") == phrase("the same-sized both")
