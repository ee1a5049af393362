"""English word lists of the checks, with the negations of a few other languages. All words are in lower case."""

from typing import Final


def words(text: str) -> frozenset[str]:
    """Return the set of words in a string."""
    return frozenset(text.split())


IGNORED: Final = words("a an the do does did also too however moreover furthermore therefore thus indeed")
"""Words that a claim may have or lack."""

NEGATIONS: Final = words(
    "not no non never none nobody nothing nowhere neither nor without hardly scarcely barely cannot unable rather "
    "instead except excluding "
    "nicht kein keine keinen keinem keiner keines nie niemals ohne weder noch "
    "pas jamais sans aucun aucune rien ni nunca sin ningún ninguna niente senza mai nessuno "
    "niet geen nooit zonder não sem nenhum nenhuma inte ej aldrig utan ikke uden nigdy żaden bez "
    "není nejsou nikdy ei eivät nem nincs soha nu niciodată değil yok tidak bukan không не нет ни никогда без ні δεν μη"
)
"""Words that negate a sentence or a part of it."""

NEGATING: Final = words("not no never hardly scarcely barely fail refuse unable nicht nie niemals pas jamais nunca")
"""Negations that turn a verb or a noun phrase into its opposite wherever they precede it."""

AUXILIARIES: Final = words("is was are were be been being has have had will would can could should must to any longer")
"""Words that may come or go with a negation."""

LIMITS: Final = words(
    "may might could would should can will shall must ought likely unlikely possibly perhaps maybe probably "
    "potentially allegedly reportedly supposedly apparently seemingly purportedly if unless whether provided assuming "
    "expect plan propose consider hope aim want intend attempt try seek claim allege believe rumour rumor suggest "
    "predict forecast estimate doubt dispute false untrue wrong myth only formerly suppose fear "
    "argue contend speculate assume guess pretend "
    "vielleicht wenn falls angeblich könnte soll sollte nur si seulement"
)
"""Words of a source that limit its whole sentence, so that a claim without them says more."""

LOCAL_LIMITS: Final = words(
    "fail refuse deny lack little stop cease quit halt avoid prevent forbid prohibit ban decline "
    "neglect omit forget oppose abandon cancel "
    "former fake alleged proposed planned would acting deputy vice ex some most many few several all every each both "
    "almost nearly about around approximately roughly circa more less fewer over under above below least up until "
    "partly partially mainly mostly largely chiefly primarily predominantly "
    "fast etwa rund einige manche alle environ presque quelques certains tous"
)
"""Words of a source that limit the words behind them."""

PREPOSITIONS: Final = words(
    "of in on at by for from to with within into onto near between among during through across along against "
    "toward towards per via inside outside behind beside under over above below after before since as including "
    "von in an auf bei mit für aus zu im am zum zur de du des à en dans sur par pour avec"
)
RELATIVES: Final = words("who which that whose whom where when")
BEFORE_CLAUSE: Final = words("after before since as until till than")
"""Prepositions that may begin a clause."""
CONJUNCTIONS: Final = words("and or but while whereas although though yet und oder aber et ou mais")
CLAUSE_WORDS: Final = words(
    "but while whereas although though because so yet and or which who not no never none neither nor aber während mais"
)
"""Words that begin another clause behind a comma."""
CLAUSE_BREAKS: Final = words("but while whereas although though because")
"""Words that begin another clause without a comma."""
ALTERNATIVES: Final = words("or oder ou")
BE: Final = words("is was are were be been being")
FACTIVE: Final = words(
    "say state write note report add explain tell read remark declare announce confirm show find reveal discover "
    "prove demonstrate know conclude establish mean warn observe learn see realise realize recognise recognize "
    "acknowledge admit fact news"
)
"""Words whose "that" introduces a statement of the source."""
UNREAL: Final = words(
    "apart aside except besides unlike disprove debunk refute discredit fictional hypothetical legend myth film movie "
    "novel story tale fable dream theory hypothesis scenario rumour rumor game play"
)
"""Words of an opening phrase that limit what follows it: "In the film, …", "Apart from Peru, …"."""
ALL_BUT: Final = words("anyone anybody everyone everybody anything everything nobody nothing none all any no")
"""Words whose "but" means "except"."""
BOUND_TO_NUMBER: Final = words(
    "to from between over under above below before after since until than at least most up < > ≤ ≥ ≈ ± ~"
)
"""Words that change what the number behind them means."""
BEHIND_NUMBER: Final = words(
    "per every each times time twice once daily weekly monthly yearly annually hourly bc bce ad ce ago or"
)
"""Words that change what the number before them means."""
UNTIL: Final = words("until till before unless")
COMPANY_FORMS: Final = words("incorporated limited corporation company co llc plc ag gmbh sa")
PRONOUNS: Final = words("he she it they we i you him her them us me his its their our your my this these those")

SYMMETRIC: Final = words(
    "meet marry border equal match resemble adjoin neighbour neighbor face draw tie coincide overlap intersect "
    "be is was are were and or with near"
)
"""Relations that hold in both directions, as stems' base forms."""
SEQUENCE: Final = words("before after then until following preceding next later")

REPORTING: Final = words(
    "say state write note report add explain tell put describe read quote mention remark declare announce confirm "
    "according to as in by it that he she they and the a an its is was has have reads words following "
    "report document article source study text passage page file paper author authors writer section memo record "
    "minutes notice review guide statement entry summary bulletin"
)
"""Words around a quotation that only say whose words follow."""

SPEAKERS: Final = words("he she they we i")
"""Pronouns in the frame of a quotation that may not replace one another."""

ABBREVIATIONS: Final = words(
    "mr mrs ms dr prof st sr jr vs inc ltd co corp dept approx est al etc e.g i.e eg ie cf ca z.b bzw "
    "jan feb mar apr jun jul aug sep sept oct nov dec gen col capt lt rev hon gov sen rep u.s u.k u.n a.m p.m "
    "mt sgt maj pres bros messrs ed eds ph.d d.c e.u u.s.a mio mrd"
)
BEFORE_DIGITS: Final = words("no nr nos fig vol pp")
"""Words that are abbreviations before a number only."""
MAY_END: Final = words("a.m p.m etc inc ltd co corp jr sr u.s u.k u.n e.u d.c u.s.a")
"""Abbreviations that often end a sentence."""
STARTERS: Final = words(
    "the it he she they we in on at this that these those its his her their but and however if when after before for "
    "as there no"
)
"""Words that begin a sentence behind such an abbreviation if they are capitalised."""
TITLES: Final = {
    "gen": "general", "col": "colonel", "capt": "captain", "lt": "lieutenant", "sgt": "sergeant", "maj": "major",
    "prof": "professor", "dr": "doctor", "rev": "reverend", "gov": "governor", "sen": "senator", "pres": "president",
    "mt": "mount", "dept": "department", "inc": "incorporated", "corp": "corporation", "ltd": "limited",
}  # fmt: skip
"""Abbreviated word of a name → full form."""

IRREGULAR: Final = {
    form: base
    for base, forms in {
        "rise": "rose risen", "fall": "fell fallen", "grow": "grew grown", "shrink": "shrank shrunk",
        "sink": "sank sunk",
        "win": "won", "lose": "lost", "buy": "bought", "sell": "sold", "give": "gave given", "take": "took taken",
        "begin": "began begun", "leave": "left", "come": "came", "go": "went gone", "make": "made", "pay": "paid",
        "send": "sent", "bring": "brought", "build": "built", "keep": "kept", "hold": "held", "write": "wrote written",
        "speak": "spoke spoken", "break": "broke broken", "drive": "drove driven", "use": "used using",
        "find": "found", "feed": "fed",
        "lead": "led", "meet": "met", "say": "said", "tell": "told", "teach": "taught", "think": "thought",
        "catch": "caught", "choose": "chose chosen", "draw": "drew drawn", "eat": "ate eaten", "fly": "flew flown",
        "forget": "forgot forgotten", "freeze": "froze frozen", "get": "got gotten", "hide": "hid hidden",
        "know": "knew known", "lend": "lent", "lay": "laid", "mean": "meant", "run": "ran", "see": "saw seen",
        "show": "shown", "spend": "spent", "stand": "stood", "steal": "stole stolen", "swim": "swam swum",
        "throw": "threw thrown", "wear": "wore worn", "withdraw": "withdrew withdrawn", "understand": "understood",
        "become": "became", "bear": "bore borne born", "bind": "bound", "fight": "fought", "seek": "sought",
        "shoot": "shot", "sing": "sang sung", "sleep": "slept", "strike": "struck", "swear": "swore sworn",
        "tear": "tore torn", "wake": "woke woken", "child": "children", "man": "men", "woman": "women",
        "person": "people", "foot": "feet", "tooth": "teeth", "mouse": "mice", "leaf": "leaves", "half": "halves",
        "analysis": "analyses", "crisis": "crises", "hypothesis": "hypotheses",
    }.items()
    for form in forms.split()
}  # fmt: skip
"""Irregular form → base form."""

_OPPOSITES = """
rise fall; increase decrease; grow shrink; gain lose; gain loss; win lose; buy sell; open close; begin end; start
stop; start end; start finish; expand contract; expand shrink; improve worsen; improve deteriorate; strengthen weaken;
raise lower; raise cut; accept reject; approve reject; approve veto; allow forbid; allow ban; allow prohibit; permit
forbid; permit prohibit; permit ban; pass fail; succeed fail; enter leave; enter exit; arrive depart; arrive leave;
import export; deposit withdraw; lend borrow; hire fire; hire dismiss; add remove; add subtract; include exclude;
attack defend; support oppose; agree disagree; admit deny; confirm deny; connect disconnect; enable disable; lock
unlock; accelerate slow; accelerate decelerate; advance retreat; climb drop; climb fall; rise drop; increase fall;
increase drop; rise decline; increase decline; grow fall; grow decline; gain fall; jump drop; surge plunge; soar
plummet; widen narrow; double halve; heat cool; warm cool; melt freeze; push pull; high low; higher lower; highest
lowest; large small; larger smaller; largest smallest; big small; bigger smaller; biggest smallest; long short; longer
shorter; longest shortest; old young; older younger; oldest youngest; old new; older newer; oldest newest; early late;
earlier later; earliest latest; fast slow; faster slower; fastest slowest; strong weak; stronger weaker; strongest
weakest; hot cold; hotter colder; warmer cooler; warmer colder; wide narrow; wider narrower; deep shallow; deeper
shallower; heavy light; heavier lighter; heaviest lightest; hard soft; harder softer; cheap expensive; cheaper dearer;
rich poor; richer poorer; good bad; better worse; best worst; safe dangerous; safe unsafe; legal illegal; public
private; positive negative; first last; more less; more fewer; most least; most fewest; maximum minimum; major minor;
upper lower; inner outer; internal external; north south; northern southern; northeast southwest; northwest southeast;
east west; eastern western; left right; above below; over under; before after; inside outside; up down; upward
downward; top bottom; front back; indoor outdoor; domestic foreign; true false; correct incorrect; guilty innocent;
alive dead; male female; man woman; day night; morning evening; majority minority; profit loss; surplus deficit;
success failure; victory defeat; always never; all none; everyone nobody; everything nothing; with without; required
optional; mandatory optional; mandatory voluntary; present absent; full empty; wet dry; thick thin; thicker thinner;
even odd; visible invisible; stable unstable; active inactive; complete incomplete; likely unlikely; able unable;
known unknown; equal unequal; common rare; frequent rare; temporary permanent; similar different; same different;
liquid solid; acid alkaline; ascend descend; exceed undercut; outperform underperform; overestimate underestimate;
prevent cause; reduce increase; reduce raise; reduce expand; reject adopt; encourage discourage; encrypt decrypt;
install uninstall; upload download; publish withdraw; hot cool; summer winter; spring autumn; < >; ≤ ≥; < ≥; > ≤
"""

NEGATING_PREFIXES: Final = ("un", "non", "dis", "in", "im", "il", "ir")

NUMBER_WORDS: Final = {
    word: value
    for value, word in enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
            "twenty",
        ]
    )
} | {"thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
ORDINALS: Final = {
    word: value + 1
    for value, word in enumerate(
        [
            "first",
            "second",
            "third",
            "fourth",
            "fifth",
            "sixth",
            "seventh",
            "eighth",
            "ninth",
            "tenth",
            "eleventh",
            "twelfth",
            "thirteenth",
            "fourteenth",
            "fifteenth",
            "sixteenth",
            "seventeenth",
            "eighteenth",
            "nineteenth",
            "twentieth",
        ]
    )
}
FRACTIONS: Final = {
    name: below
    for names, below in (
        ("half halves", 2), ("third thirds", 3), ("quarter quarters fourth fourths", 4), ("fifth fifths", 5),
        ("sixth sixths", 6), ("seventh sevenths", 7), ("eighth eighths", 8), ("ninth ninths", 9), ("tenth tenths", 10),
    )
    for name in names.split()
}  # fmt: skip
"""Part of a whole → denominator."""
BEFORE_FRACTION: Final = words("by to from of than about almost nearly roughly over under only around")
"""Words before "a third" that tell it from an ordinal."""


def opposites() -> dict[str, frozenset[str]]:
    """Return the opposites of each word of the table."""
    table: dict[str, set[str]] = {}
    for pair in _OPPOSITES.split(";"):
        one, other = pair.split()
        table.setdefault(one, set()).add(other)
        table.setdefault(other, set()).add(one)
    return {word: frozenset(found) for word, found in table.items()}
