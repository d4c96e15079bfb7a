"""Which recorded calls are replayed, by whom and after what; a step is `WHO NUMBERS` or `> ARRANGEMENT`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

SCENES = {
    "nobody": "nobody 22-27; wrong 28; stale 29; uncsrf 46 47",
    "a token without rights": "token 35-45",
    "an empty host": "root 1-5 8 14 20 37 48-50 51 53-68 71 88 95 96 97 98-101 102 103 70 651 653",
    "a vm and its config": (
        "> vm 100; root 80-83 85-87 89 105-111 112 113 115 117-123 124 126-128 130-143 145-149 151-156"
        " 163 164 166-168; > mute; root 169-171 173-174; > again 175; root 175-179 183 190-192 196-202"
    ),
    "a template": "> vm 9000 285; root 285-288",
    "grants, one after another": (
        "> template; token 295; > grant /vms; token 297; > grant /storage/local; token 299;"
        " > grant /sdn/zones/localnetwork; token 301-305"
    ),
    "a clone on its way": (
        "> template; > granted; token 302 303; token 306-317 318-322; token 323; root 325; token 326-329 340 345;"
        " root 357-359 367; token 368 370-372"
    ),
    "several clones": (
        "> template; > granted; token 373-377 379 381; root 383 384; token 385-396; root 397-403 404;"
        " token 405-432 466-475; > again 476; token 476-478"
    ),
    "storages": (
        "> template; > granted; root 439; token 440; > grant /storage/tiny; token 442 443 446 448 449; root 465;"
        " > iso; token 457 458; > tiny; root 496; > slow; token 497-503; > gone; root 512 513; token 514 515-516;"
        " root 517 518; token 519; root 523-525"
    ),
    "a busy clone": "> template; > granted; > slow; token 539; > later; token 540-543 544-553",
    "a token with less than its user": "> template; > separate; sep 568 569; > user; sep 571-573",
    "lock files": "> template; > granted; > slower; token 592; > later; token 593-600 602 603-613",
    "an agent that is switched off": (
        "> template; > granted; > clone 352 par; token 617-626 628-630 636-643 645-648"
    ),
    "cloud-init drives": "> template; > granted; > clone 400 pxm; root 737-747",
    "other hosts": "> other; root 780 781",
    "one id for three": "> template; > granted; token 813-816; root 817 818; token 826-828; root 843; token 844",
    "one vm after the other": ("> template; > granted; > clone 610 snip; token 865-868 872 877 878"),
    "a stop that comes too late": "> template; > granted; > clone 610 snip; token 880-882",
    "reboot and end": (
        "> template 1500M; > granted; token 885-889 893-896 981; > settled; root 982; token 983-987"
    ),
}


@dataclass(frozen=True)
class Step:
    """One step: a call of `who`, or an arrangement with its words."""

    who: str
    number: int = -1
    words: tuple[str, ...] = ()


def steps(text: str) -> Iterator[Step]:
    for part in re.split(r";\s*", text):
        who, *rest = part.split()
        if who == ">":
            yield Step(rest[0], words=tuple(rest[1:]))
            continue
        for numbers in rest:
            first, _, last = numbers.partition("-")
            yield from (Step(who, number) for number in range(int(first), int(last or first) + 1))


def numbers() -> set[int]:
    return {step.number for text in SCENES.values() for step in steps(text) if step.number >= 0}
