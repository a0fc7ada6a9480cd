"""A second scorer, plain and slow: reads answers by the rules of `BENCHMARK.md` and counts.

Nothing of the package's readers is used, only the table of questions. Where the package is clever about time, this
tries everything: each brace is tried as the beginning of an object, each colon as that of a member.
"""

from __future__ import annotations

import json
import math

import numpy as np

from reasonknee_hf.knee.moaks import QUESTIONS

OPEN, CLOSE = "\"'“‘", "\"'”’"
BOXES = {"boundingbox", "bbox", "box", "boundingbox3d", "3dboundingbox", "bbox3d", "3dbbox"}
WRAPPERS = {
    "moaksscores",
    "moaksscore",
    "moaksgrade",
    "moaksgrades",
    "finaldiagnosis",
    "diagnosis",
    "answer",
    "result",
}
SIDES = ("start_slice", "end_slice", "x_min", "x_max", "y_min", "y_max")
SPECIAL = ("</s>", "<s>", "<eos>", "<end_of_turn>")
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight"]


def plain(key):
    return "".join(c for c in str(key) if c.isalnum()).casefold()


LESIONS = {plain(question.prompt_key) for question in QUESTIONS.values()}


class Bad(Exception):
    pass


class Cursor:
    """JSON and what models make of it, one character after the other."""

    def __init__(self, text, at):
        self.text, self.at = text, at

    def look(self):
        if self.at >= len(self.text):
            raise Bad
        return self.text[self.at]

    def blanks(self):
        while self.at < len(self.text):
            rest = self.text[self.at : self.at + 2]
            if rest[0].isspace():
                self.at += 1
            elif rest[0] == "#" or rest == "//":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end + 1
            elif rest == "/*":
                end = self.text.find("*/", self.at)
                if end < 0:
                    raise Bad
                self.at = end + 2
            else:
                return

    def value(self, level=0):
        self.blanks()
        first = self.look()
        if level > 24:
            raise Bad
        if first == "{":
            return self.members(level)
        if first in "[(":
            return self.several("]" if first == "[" else ")", level)
        if first in OPEN:
            return self.string()
        if first.isdigit() or first in "+-.":
            number = self.number()
            if number is not None:
                return number
        return self.word()

    def string(self):
        quote = self.look()
        closing = CLOSE[OPEN.index(quote)]
        at, out = self.at + 1, ""
        while True:
            if at >= len(self.text):
                raise Bad
            c = self.text[at]
            if c == closing:
                break
            if quote in "“‘" and c == quote:
                raise Bad
            if c == "\\" and quote in "\"'":
                out += self.text[at : at + 2]
                at += 2
                continue
            out += c
            at += 1
        self.at = at + 1
        if quote != '"':
            return out.replace("\\'", "'").replace('\\"', '"')
        try:
            return json.loads(f'"{out}"', strict=False)
        except ValueError:
            raise Bad from None

    def number(self):
        end = self.at
        while end < len(self.text) and (self.text[end].isalnum() or self.text[end] in "_.+-"):
            end += 1
        run = self.text[self.at : end]
        digits = run.replace("e", "").replace("E", "").replace(".", "").replace("+", "").replace("-", "")
        if not digits.isascii() or not digits.isdigit() or not (run[-1].isdigit() or run[-1] == "."):
            return None
        try:
            value = float(run)
        except ValueError:
            return None
        self.at = end
        return value if any(c in run for c in ".eE") else int(run)

    def word(self):
        start = self.at
        minus = self.look() == "-"
        end = start + minus
        if end >= len(self.text) or not (self.text[end].isalpha() or self.text[end] == "_"):
            raise Bad

        def inner(c):
            return c.isalnum() or c in "_%"

        while end < len(self.text) and inner(self.text[end]):
            end += 1
        while True:
            next_ = end
            while next_ < len(self.text) and self.text[next_] in " \t":
                next_ += 1
            if next_ == end or next_ >= len(self.text) or not inner(self.text[next_]):
                break
            end = next_
            while end < len(self.text) and inner(self.text[end]):
                end += 1
        word = self.text[start + minus : end]
        self.at = end
        if word in ("NaN", "Infinity"):
            return float(word) * (-1 if minus else 1)
        if minus:
            raise Bad
        names = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
        return names.get(word, word)

    def members(self, level):
        self.at += 1
        found = {}
        first = True
        while not self.closed("}", first):
            first = False
            key = self.string() if self.look() in OPEN else self.word()
            self.blanks()
            if not isinstance(key, str) or self.look() != ":":
                raise Bad
            self.at += 1
            found[key] = self.value(level + 1)
        return found

    def several(self, closing, level):
        start = self.at
        self.at += 1
        found = []
        while not self.closed(closing, not found):
            found.append(self.value(level + 1))
        alone = closing == ")" and len(found) == 1 and "," not in self.text[start : self.at]
        return found[0] if alone else found

    def closed(self, closing, first):
        self.blanks()
        if not first and self.look() != closing:
            if self.look() != ",":
                raise Bad
            self.at += 1
            self.blanks()
        if self.look() != closing:
            return False
        self.at += 1
        return True


def value_at(text, at):
    cursor = Cursor(text, at)
    try:
        return cursor.value(), cursor.at
    except Bad:
        return None


def objects(text):
    found, at = [], 0
    while at < len(text):
        got = value_at(text, at) if text[at] == "{" else None
        if got:
            found.append((got[0], at, got[1]))
            at = got[1]
        else:
            at += 1
    return found


def members(text):
    """(squashed key, where it begins, where its value begins) of all `"key":`."""
    found = []
    for at, c in enumerate(text):
        if c != ":":
            continue
        end = at
        while end > 0 and text[end - 1].isspace():
            end -= 1
        if not end or text[end - 1] not in CLOSE:
            continue
        start = end - 2
        while start >= 0 and text[start] not in "\"'“”‘’{}[]:\n":
            start -= 1
        if start >= 0 and text[start] in OPEN and 2 <= end - 2 - start <= 80:
            value = at + 1
            while value < len(text) and text[value].isspace():
                value += 1
            found.append((plain(text[start + 1 : end - 1]), start, value))
    return found


def begins_an_answer(text, at):
    rest = text[at + 1 :].lstrip()
    if rest == "" or rest in OPEN:
        return True
    if rest[0] in OPEN:
        return rest[1].isalnum() or rest[1] == "_"
    if not (rest[0].isalnum() or rest[0] == "_"):
        return False
    for length, c in enumerate(rest[:81]):
        if c == ":":
            return length >= 1
        if not (c.isalnum() or c in "_ %()/-"):
            return False
    return False


def unclosed(text, start):
    places = []
    for strings in (False, True):
        opened, at = [], start
        while at < len(text):
            c = text[at]
            if c == '"' and strings:
                at += 1
                while at < len(text) and text[at] not in '"\n':
                    if text[at] == "\\" and text[at + 1 : at + 2] in ("", "\n"):
                        break
                    at += 2 if text[at] == "\\" else 1
                if at < len(text) and text[at] != '"':
                    continue
            elif c == "{":
                opened.append(at)
            elif c == "}" and opened:
                opened.pop()
            at += 1
        places += [place for place in opened if begins_an_answer(text, place)]
    return min(places, default=None)


def goes_on(text, start, wanted):
    begun = unclosed(text, start)
    if begun is None:
        return False
    keys = [key for key, at, value in members(text[start:]) if value + start >= begun]
    return wanted in keys or not LESIONS & set(keys)


# --- where things stand ---------------------------------------------------------------------------


def lesions_in(node, question, around=()):
    """(value, objects around it from the inside out) of the asked lesion."""
    if isinstance(node, list):
        return [hit for element in node for hit in lesions_in(element, question, around)]
    if not isinstance(node, dict):
        return []
    hits, exact = [], []
    for key, value in node.items():
        if plain(key) == plain(question.prompt_key):
            asked = key in (question.prompt_key, question.prompt_key.replace(" ", "_"))
            (exact if asked else hits).append((value, [node, *around]))
        else:
            hits += lesions_in(value, question, (node, *around))
    return hits + exact


def names_a_lesion(node):
    if isinstance(node, list):
        return any(names_a_lesion(element) for element in node)
    if not isinstance(node, dict):
        return False
    return any(plain(key) in LESIONS or names_a_lesion(value) for key, value in node.items())


def attribute(key, question):
    """(name, 0 exact / 1 respelled / 2 alias)."""
    for a in question.attributes:
        if key in (a.name, a.prompt_key):
            return a.name, 0
    said = plain(str(key).replace("%", "percent"))
    for rank in (1, 2):
        for a in question.attributes:
            names = [a.name, a.prompt_key] if rank == 1 else a.aliases
            if said in [plain(name.replace("%", "percent")) for name in names if name]:
                return a.name, rank
    if len(question.attributes) == 1 and said in ("grade", "score", "value", "moaksgrade", "moaksscore"):
        return question.attributes[0].name, 2
    return None


def unnamed_in(node, question, around=()):
    if isinstance(node, list):
        return [hit for element in node for hit in unnamed_in(element, question, around)]
    if not isinstance(node, dict):
        return []
    if any(attribute(key, question) for key in node):
        return [(node, [*around])]
    return [
        hit
        for key, value in node.items()
        if plain(key) in WRAPPERS
        for hit in unnamed_in(value, question, (node, *around))
    ]


def boxes_in(node):
    if isinstance(node, list):
        return [box for element in node for box in boxes_in(element)]
    if not isinstance(node, dict):
        return []
    inner = [box for key, value in node.items() if plain(key) not in BOXES for box in boxes_in(value)]
    own = [key for key in node if plain(key) in BOXES]
    own.sort(key=lambda key: key == "bounding_box")
    return inner + [node[key] for key in own]


def boxes_around(value, around):
    if boxes_in(value):
        return boxes_in(value)
    inside = value
    for node in around:
        kept = {
            key: other
            for key, other in node.items()
            if other is not inside and plain(key) not in LESIONS and not names_a_lesion(other)
        }
        if boxes_in(kept):
            return boxes_in(kept)
        inside = node
    return []


# --- grades and boxes -----------------------------------------------------------------------------


def labels(question, a):
    if a.name == "tear_location":
        side = question.structure.split()[0]
        names = {}
        for code, part in enumerate(("anterior", "body", "posterior")):
            names |= dict.fromkeys((part, f"{side} meniscus {part}", side[0] + "m" + part[0]), code)
        return names | {"none": 3, "no tear": 3, "no tear detected": 3}
    if a.kind == "binary":
        no, yes = "absent|no|not present|not detected|negative", "present|yes|detected|positive"
        return dict.fromkeys(no.split("|"), 0) | dict.fromkeys(yes.split("|"), 1)
    if a.kind == "nominal":
        names = "normal|signal abnormality|radial tear|horizontal tear|vertical tear|complex tear|partial maceration"
        names += "|progressive partial maceration|complete maceration"
        return {name: code for code, name in enumerate(names.split("|"))} | {"normal meniscus": 0}
    if question.family == "osteophyte":
        return {"none": 0, "absent": 0, "small": 1, "medium": 2, "large": 3}
    if question.family == "Hoffa-synovitis":
        return {"normal": 0, "mild": 1, "moderate": 2, "severe": 3}
    if question.family == "effusion-synovitis":
        sizes = ("physiologic", "small", "medium", "large")
        return {name: n for n, size in enumerate(sizes) for name in (size, f"{size} amount of fluid")}
    if question.category == "Cartilage" and a.name == "depth":
        return {"none": 0, "no full-thickness loss": 0}
    return {"none": 0} if question.category in ("BML", "Cartilage") else {}


def leading_number(text):
    """The number at the beginning of `Grade 2 ...`, and what follows."""
    rest = text
    for word in ("moaks ", ""):
        for name in ("grade", "score"):
            if rest.casefold().startswith(word + name):
                rest = rest[len(word + name) :].lstrip()
                rest = (rest[1:] if rest[:1] in (":", "=") else rest).lstrip()
                break
        else:
            continue
        break
    end = 1 if rest[:1] in ("+", "-") else 0
    start = end
    while end < len(rest) and rest[end] in "0123456789":
        end += 1
    if not 1 <= end - start <= 9:
        return None, text
    value = int(rest[:end])
    rest = rest[end:]
    if rest[:1] == ".":
        rest = rest[1:].lstrip("0")
    return value, rest


def grade(value, question, a):
    if isinstance(value, bool):
        value = int(value) if a.kind == "binary" else None
    elif isinstance(value, float):
        value = int(value) if math.isfinite(value) and value == int(value) else None
    elif isinstance(value, str):
        value = grade_of_text(" ".join(value.split()), question, a)
    elif not isinstance(value, int):
        value = None
    return value if value is not None and 0 <= value <= a.high else None


def grade_of_text(text, question, a):
    number, rest = leading_number(text)
    if number is not None and rest == "":
        return number
    label = text.casefold().rstrip(".")
    if label in NUMBERS:
        return NUMBERS.index(label)
    if label in ("true", "false"):
        return int(label == "true") if a.kind == "binary" else None
    if label.replace("_", " ") in labels(question, a):
        return labels(question, a)[label.replace("_", " ")]
    if number is None:
        return None
    inner = rest.lstrip()
    if inner[:1] == "(" and inner[-1:] == ")" and not any(c in "()" for c in inner[1:-1]):
        said = inner[1:-1].strip()
        either = said.startswith("or") and not (said[2:3].isalnum() or said[2:3] == "_")
        return None if said.isdigit() or either else number
    dash = rest[:1] == " " and inner[:1] in ("-", "–", "—") and inner[1:2] == " "
    if inner[:1] in (":", "=") or dash:
        said = inner[1:].lstrip()
        either = said.startswith("or") and not (said[2:3].isalnum() or said[2:3] == "_")
        return None if either or said[:1] in tuple("0123456789<>≥≤") else number
    return None


def grades_of(value, question):
    """The valid grades; all asked ones if the answer is valid."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict):
        value = value[0]
    if not isinstance(value, dict):
        if len(question.attributes) > 1:
            return {}
        value = {question.attributes[0].name: value}
    measured = any(plain(key) in ("unit", "units", "uom") for key in value)
    found = {}
    for a in question.attributes:
        for rank in (0, 1, 2):
            said = [raw for key, raw in value.items() if attribute(key, question) == (a.name, rank)]
            if said and not (rank == 2 and measured):
                read = grade(said[0], question, a) if all(raw == said[0] for raw in said[1:]) else None
                if read is not None:
                    found[a.name] = read
                break
    return found


def box_of(boxes):
    """Six finite numbers, or None."""
    if not boxes or boxes[-1] is None:
        return None
    raw = boxes[-1]
    if isinstance(raw, str):
        try:
            raw = json.loads(raw)
        except ValueError:
            return None
    if isinstance(raw, dict):
        named = {str(key).strip().casefold().replace(" ", "_"): value for key, value in raw.items()}
        raw = [named.get(name) for name in SIDES]
    if not isinstance(raw, list) or len(raw) != 6 or any(isinstance(n, bool) for n in raw):
        return None
    try:
        numbers = [float(n) for n in raw]
    except (TypeError, ValueError, OverflowError):
        return None
    return tuple(numbers) if all(math.isfinite(n) and abs(n) <= 1e9 for n in numbers) else None


# --- one answer -----------------------------------------------------------------------------------


def read(text, question):
    """(valid grades by name, box or None) of an answer."""
    text = without_tokens(text)
    if not text.strip():
        return {}, None
    shown, thought = without_thoughts(text)
    for body in (text, apart(shown)):
        value = whole(body)
        if value is None:
            continue
        if isinstance(value, str):
            return read(value, question)
        if isinstance(value, dict) and list(value) in (["response"], ["error"]):
            given = value.get("response")
            return read(given, question) if isinstance(given, str) else last([(given, 0, 0)], question, "")
        return last([(value, 0, 0)], question, "")
    if thought.strip() and not shown.strip():
        shown = thought
    return last(objects(shown), question, shown)


def without_tokens(text):
    at = 0
    while (at := text.find("<", at)) >= 0:
        sizes = [len(token) for token in SPECIAL if text.casefold().startswith(token, at)]
        if text.startswith("<|", at) and (end := text.find("|>", at + 2)) > 0:
            name = text[at + 2 : end]
            if 1 <= len(name) <= 40 and not any(c in "<>|" or c.isspace() for c in name):
                sizes.append(end + 2 - at)
        for size in sizes[:1]:
            text = text[:at] + " " * size + text[at + size :]
        at += 1
    return text


def whole(text):
    if text.strip()[:1] not in ("{", "[", '"'):
        return None
    try:
        return json.loads(text.strip())
    except (ValueError, RecursionError):
        return None


def without_thoughts(text):
    names = ("think", "thinking", "thought", "thoughts", "reasoning", "analysis", "scratchpad")
    tags = sorted(
        (at, at + len(tag), closes)
        for name in names
        for tag, closes in ((f"<{name}>", False), (f"</{name}>", True))
        for at in range(len(text))
        if text.casefold().startswith(tag, at)
    )
    hidden = [False] * len(text)
    opened = None
    for at, end, closes in tags:
        if not closes:
            opened = at if opened is None else opened
        else:
            hidden[opened or 0 : end] = [True] * (end - (opened or 0))
            opened = None
    if opened is not None:
        hidden[opened:] = [True] * (len(text) - opened)
    shown = "".join(" " if h else c for c, h in zip(text, hidden, strict=True))
    thought = [c if h else " " for c, h in zip(text, hidden, strict=True)]
    for at, end, _ in tags:
        thought[at:end] = " " * (end - at)
    return shown, "".join(thought)


def apart(text):
    low = text.casefold()
    at = low.rfind("<answer>")
    if at >= 0:
        end = low.find("</answer>", at)
        return text[at + 8 : end if end >= 0 else len(text)]
    at = low.rfind("final diagnosis")
    while at >= 0:
        rest = text[at + 15 :].lstrip()
        if rest[:1] == ":":
            return rest[1:]
        at = low.rfind("final diagnosis", 0, at)
    return text


def last(found, question, text):
    wanted = plain(question.prompt_key)
    items = []
    for value, start, stop in found:
        elements = [e for e in value if isinstance(e, dict | list)] if isinstance(value, list) else [value]
        items += [(element, start, stop) for element in elements]
    hits = [(n, hit) for n, item in enumerate(items) for hit in lesions_in(item[0], question)]
    if not hits and text:
        bare = bare_answer(text, items, question)
        if bare:
            return bare
    if not hits:
        others = {key for key, _, _ in members(text)} & LESIONS - {wanted}
        if others or any(names_a_lesion(item[0]) for item in items):
            return {}, None
        hits = [(n, hit) for n, item in enumerate(items) for hit in unnamed_in(item[0], question)]
    if not hits:
        with_box = [boxes_in(item[0]) for item in items if boxes_in(item[0])]
        return {}, box_of(with_box[-1] if with_box else lone(text))
    at, (value, around) = hits[-1]
    if text and goes_on(text, items[at][2], wanted):
        return {}, None
    boxes = boxes_around(value, around)
    taken = {n for n, _ in hits}
    for n in ([at - 1] if at else []) + ([at + 1] if at + 2 == len(items) else []):
        if not boxes and n not in taken and stands_apart(items[n], text):
            boxes = boxes_in(items[n][0])
    return grades_of(value, question), box_of(boxes)


def stands_apart(item, text):
    return not names_a_lesion(item[0]) and not text[max(0, item[1] - 20) : item[1]].rstrip().endswith(":")


def lone(text):
    boxes = [value for key, _, value in members(text) if key in BOXES]
    got = value_at(text, boxes[-1]) if boxes else None
    return [got[0]] if got else []


def bare_answer(text, items, question):
    wanted, every = plain(question.prompt_key), members(text)
    for n in range(len(every) - 1, -1, -1):
        key, start, at = every[n]
        got = value_at(text, at) if key == wanted else None
        if not got:
            continue
        value, stop = got
        rest = text[stop:].lstrip()
        if (
            not isinstance(value, dict | list)
            and rest[:1] not in (",", "}")
            and rest.strip() not in ("", "```")
        ):
            continue
        if goes_on(text, stop, wanted):
            return {}, None
        return grades_of(value, question), box_of(bare_box(text, items, every, n, value, start, stop))
    return None


def bare_box(text, items, every, n, value, start, stop):
    if boxes_in(value):
        return boxes_in(value)
    before = [item for item in items if item[2] <= start][-1:]
    if before and stands_apart(before[0], text):
        between = {key for key, at, _ in every[:n] if at >= before[0][1]}
        if not between & LESIONS and boxes_in(before[0][0]):
            return boxes_in(before[0][0])
    for key, _, at in reversed(every[:n]):
        if key in LESIONS:
            break
        between = text[at:start]
        if key in BOXES and between.count("}") <= between.count("{"):
            got = value_at(text, at)
            return [got[0]] if got else []
    for key, at, place in every[n + 1 :]:
        if at < stop:
            continue
        if key in LESIONS:
            break
        between = text[stop:at]
        if key in BOXES and between.count("{") <= between.count("}"):
            got = value_at(text, place)
            return [got[0]] if got else []
    return []


# --- the figures ----------------------------------------------------------------------------------


def iou(a, b):
    a, b = np.array(a, float).reshape(3, 2), np.array(b, float).reshape(3, 2)
    if (a[:, 1] < a[:, 0]).any():
        return 0.0
    shared = np.prod(np.maximum(np.minimum(a[:, 1], b[:, 1]) - np.maximum(a[:, 0], b[:, 0]) + 1, 0))
    return float(shared / (np.prod(a[:, 1] - a[:, 0] + 1) + np.prod(b[:, 1] - b[:, 0] + 1) - shared))


def figures(rows, answers):
    """Item and attribute accuracy, coverage and mean IoU, by category and of all, as `{group: {figure: value}}`."""
    counts = {}
    for row in rows:
        question = QUESTIONS[row["question_id"]]
        said, box = read(answers.get(row["id"], ""), question)
        true = {g["attribute"]: g["grade"] for g in row["grades"]}
        hits = [said.get(name) == true[name] for name in true]
        line = [
            all(hits),
            sum(hits),
            len(hits),
            len(said) == len(true),
            iou(box, row["bbox"]) if box else 0.0,
            1,
        ]
        for group in (question.category, "all"):
            counts[group] = np.array(counts.get(group, np.zeros(6))) + line
    return {
        group: {
            "item_accuracy": c[0] / c[5],
            "attribute_accuracy": c[1] / c[2],
            "coverage": c[3] / c[5],
            "iou": c[4] / c[5],
        }
        for group, c in counts.items()
    }
