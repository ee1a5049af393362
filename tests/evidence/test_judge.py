"""The judgement of single claims: what is established, why, and by which checks."""

import pytest

from requirements import requirement
from sidestream.evidence import EvidenceState, judge

SURE = ("quoted", "supported")

LITERAL = [
    ("Did the dam break in 1990?", "Did the dam break in 1990?"),
    ("Section 4(b) was repealed.", "Section 4(b) was repealed."),
    ("Python 3.10 is required.", "The document says: Python 3.10 is required."),
    ("The dose is 0.5 mg.", "The dose is .5 mg."),
    ("The plank is 9¾ inches long.", "The plank is 9.75 inches long."),
    ("The mine moves 300 tonnes per day.", "The mine moves 300,000 kg per day."),
    ("The share rose to 3.10 %.", "The share rose to 3.1 %."),
    (
        "Net sales increased 7.4% to US$12.3bn in 2022.",
        "Net sales increased 7.4 percent to 12.3 billion US dollars in 2022.",
    ),
    (
        "The committee, which met in Geneva, approved the plan on Tuesday.",
        "The committee approved the plan on Tuesday.",
    ),
    ("Sales rose 12.5% to €3.2bn in Q3 2021.", "Sales rose 12.5 percent to 3.2 billion euros in Q3 2021."),
    ("The tower is 1,230 m tall.", "The tower is 1.23 km tall."),
    ("The company employs 1,230 people.", "The company employs 1.23 thousand people."),
    ("The company employs 1,230 people.", "The company employs 1230 people."),
    ("L'usine emploie 1 230 personnes.", "L'usine emploie 1230 personnes."),
    ("The firm paid $1.5 million in fines.", "The firm paid $1,500,000 in fines."),
    ("It took twenty-five days to cross the desert.", "It took 25 days to cross the desert."),
    ("Founded in 1889, the company makes clocks in Basel.", "The company makes clocks in Basel."),
    ("The treaty was signed on 4 July 1976 in Vienna.", "The treaty was signed in Vienna on 4 July 1976."),
    ("The treaty was signed on July 4th, 1976.", "The treaty was signed on 4 July 1976."),
    ("The treaty was signed on 1976-07-04.", "The treaty was signed on 4 July 1976."),
    ("The samples were not frozen.", "The samples weren't frozen."),
    ("Its colour faded within three weeks of exposure.", "Its color faded within 3 weeks of exposure."),
    ("The mayor, Ana Ruiz, opened the park.", "The mayor, Ana Ruiz, opened the park."),
    ("The limit is 90 kilometres per hour.", "The limit is 90 km/h."),
    ("The limit is 90 km/h.", "The limit is 90 kilometres per hour."),
    ("It takes 10–20 days.", "It takes 10 to 20 days."),
    ("It takes 10 to 20 days.", "It takes 10-20 days."),
    ("The disk reads 500 MB/s.", "The disk reads 500 megabytes per second."),
    ("The dose is 0.5 mg/kg.", "The dose is 500 µg/kg."),
    ("The rent is $20 per square metre.", "The rent is 20 dollars per square meter."),
    ("He earns $25 an hour.", "He earns $25 per hour."),
    ("The battery holds 75 kWh.", "The battery holds 75 kilowatt-hours."),
    ("Earnings per share were 23.4p.", "Earnings per share were 23.4 pence."),
    ("The site has 1.2 million users.", "The site has 1.2M users."),
    ("Half a million people live there.", "500,000 people live there."),
    ("It took one and a half hours.", "It took 90 minutes."),
    ("It sold two and a half million copies.", "It sold 2.5 million copies."),
    ("About two-thirds of the farmers left.", "About 2/3 of the farmers left."),
    ("Orders rose by a third.", "Orders rose by 1/3."),
    ("The twenty-first century has begun.", "The 21st century has begun."),
    ("The U.S. Coast Guard came at 9 a.m.", "The US Coast Guard came at 9 am."),
    ("Gen. Moss and Prof. Li met at Mt. Etna.", "General Moss and Professor Li met at Mount Etna."),
    ("Beta sued Acme Inc. in New York.", "Beta sued Acme in New York."),
    ("Die Firma zahlte 4,5 Millionen Euro.", "Die Firma zahlte 4,5 Mio. Euro."),
    ("(2) The buyer shall not assign the contract.", "The buyer shall not assign the contract."),
    ("Widget requires Python and no longer supports Windows.", "Widget requires Python."),
    ("Three people were injured, none of them seriously.", "Three people were injured."),
    ("He lost his job because he did not sign.", "He lost his job."),
    ("Hamlet was staged in Elsinore, not in London.", "Hamlet was staged in Elsinore."),
    ("The shop closes at 5 p.m. The café stays open.", "The café stays open."),
    ("They met on Friday, 13 March 2020, at noon.", "They met on 13 March 2020."),
    ("Bergen has 280,000 people.", "and Bergen has 280,000 people."),
    ("A plan of Bergen was found.", "- A plan of Bergen was found."),
    ("The dam is safe.", "According to the annual report, the dam is safe."),
]
UNSUPPORTED = [
    ("The dose is 0.5 mg/kg.", "The dose is 0.5 mg."),
    ("The disk reads 500 MB/s.", "The disk reads 500 MB."),
    ("The rent is $20 per square metre.", "The rent is $20 per metre."),
    ("He earns $25 an hour.", "He earns $25."),
    ("The dose is 5 mg three times a day.", "The dose is 5 mg."),
    ("Interest accrues at 1.5% per month.", "Interest accrues at 1.5% per year."),
    ("The fine was A$50,000.", "The fine was $50,000."),
    ("The fine is between £500 and £20,000.", "The fine is £500."),
    ("The fine is between £500 and £20,000.", "The fine is £20,000."),
    ("It took one and a half hours.", "It took half an hour."),
    ("Install widget 4.10.2 now.", "Install widget 4.10 now."),
    ("The server is at 10.0.0.12.", "The server is at 10.0.0.1."),
    ("The ratio was 3:1.", "The ratio was 3."),
    ("The train leaves at 16:30.", "The train leaves at 16."),
    ("The budget passed by 31 votes to 12.", "The budget passed by 31 votes."),
    ("The battle took place in 480 BC.", "The battle took place in 480."),
    ("It is the second-largest lake.", "It is the largest lake."),
    ("Hepatitis A is mild.", "Hepatitis is mild."),
    ("Widget requires Python 3.9 or later.", "Widget requires Python 3.9."),
    ("Kim or Lee won the prize.", "Lee won the prize."),
    ("Anyone but Kim can win.", "Kim can win."),
    ("Apart from Peru, every country signed.", "Every country signed."),
    ("In the film, aliens destroy Paris.", "Aliens destroy Paris."),
    ("There is little evidence that the drug works.", "The drug works."),
    ("There is little evidence that the drug works.", "There is evidence that the drug works."),
    ("The bill was not passed until 2019.", "The bill was not passed."),
    ("The plant stopped producing steel.", "The plant produced steel."),
    ("The plant is supposed to open in 2026.", "The plant is open in 2026."),
    ("The dam is being repaired.", "The dam is repaired."),
    ("Acme was sued in 2019.", "Acme sued in 2019."),
    ("The minister resigned; the premier did not.", "The minister did not."),
    ("The minister resigned, the premier laughed and left.", "The minister left."),
    ("He will resign or be dismissed.", "He will be dismissed."),
    ("The plant made 700 cars; in 2020 it closed.", "The plant made 700 cars in 2020."),
    ("The plant made 700 cars, and in 2020 it closed.", "The plant made 700 cars in 2020."),
    ("The shop closed after a fire that broke out in 1990.", "The shop closed in 1990."),
    ("The minister, who resigned in May, praised the plan.", "The minister praised the plan in May."),
    ("Norway sold 5 t of gas in 2021, 3 % more than in 2020.", "Norway sold 5 t of gas in 2020."),
    ("She wrote: “I never said that the king would go.”", "He wrote: “I never said that the king would go.”"),
    ("The key “abc def” is enough for that.", "The key “abc def” is not enough for that."),
    ("If “abc def” is set, it is read but not sent.", "If “abc def” is set, it is not read but sent."),
    ("Either “git pull” or “git fetch” works well.", "Either “git fetch” or “git pull” does not work well."),
    ("“git pull x” calls “git fetch x” first.", "“git fetch x” calls “git pull x” first."),
    ("“Work a” means any work, in source or object form.", "“Work a” means any work, in source and object form."),
    ("The account 9853830787 was closed.", "The account 9853830788 was closed."),
    ("Its number is 978316148410.", "Its number is 978316148411."),
    ("Copyright 2001-2002 by Al Green.", "Copyright 2001 by Al Green."),
    ("He served from 1990 to 1995.", "He served from 1990."),
    ("The dam is safe.", "According to the mayor, the dam is safe."),
    ("Kim told Lee that “all is lost”.", "Lee told Kim that “all is lost”."),
    ("Il ponte non è sicuro.", "Il ponte è sicuro."),
    ("The software is non-free.", "The software is free."),
    ("Doctors note that the drug works.", "Doctors not that the drug works."),
    ("De brug is niet veilig.", "De brug is veilig."),
    ("Bron är inte säker.", "Bron är säker."),
    ("A ponte não é segura.", "A ponte é segura."),
    ("Мост не безопасен.", "Мост безопасен."),
    ("Most nie jest bezpieczny.", "Most jest bezpieczny."),
    ("Köprü güvenli değil.", "Köprü güvenli."),
    ("The limit is 90 km/h.", "The limit is 90 km."),
    ("The limit is 90 km.", "The limit is 90 km/h."),
    ("The limit is 90 kilometres per hour.", "The limit is 90 miles per hour."),
    ("It falls at 5 m/s².", "It falls at 5 m."),
    ("The room has 10 to 20 seats.", "The room has 10 seats."),
    ("The room has 10–20 seats.", "The room has 10 seats."),
    ("The room has 10–20 seats.", "The room has 20 seats."),
    ("They won 2-1.", "They won 2."),
    ("It takes 10 to 20 days.", "It takes 10–25 days."),
    ("It takes 10–20 days.", "It takes 20 to 10 days."),
    ("Did the dam break in 1990?", "The dam broke in 1990."),
    ("“Did the dam break in 1990?”", "The dam did break in 1990."),
    ("The cable carries 20 mA.", "The cable carries 20 MA."),
    ("Section 4(b) was repealed.", "Section 4(a) was repealed."),
    ("Python 3.10 is required.", "Python 3.1 is required."),
    ("Python 3.1 is required.", "Python 3.10 is required."),
    ("The train leaves from platform 9¾.", "The train leaves from platform 9."),
    ("It was partly destroyed in the fire.", "It was destroyed in the fire."),
    ("The virus spreads mainly through water.", "The virus spreads through water."),
    ("The mine moves 300 tonnes per day.", "The mine moves 300 tonnes."),
    (
        "Patients aged ≥ 65 years had a lower risk (p < 0.001).",
        "Patients aged ≤ 65 years had a lower risk (p < 0.001).",
    ),
    (
        "Patients aged ≥ 65 years had a lower risk (p < 0.001).",
        "Patients aged ≥ 65 years had a lower risk (p > 0.001).",
    ),
    ("Patients aged ≥ 65 years had a lower risk.", "Patients aged 65 years had a lower risk."),
    ("Revenue rose 5% and profit fell 3%.", "Revenue fell 3%."),
    ("Revenue rose 5% and profit fell 3%.", "Profit rose 5%."),
    ("The firm that bought Acme fired 20 people.", "Acme fired 20 people."),
    ("Bob's brother won the race.", "Bob won the race."),
    ("Alice said Bob won the race.", "Alice won the race."),
    ("The mayor of Paris resigned.", "Paris resigned."),
    ("Some patients recovered fully.", "Patients recovered fully."),
    ("Some patients recovered fully.", "All patients recovered fully."),
    ("The drug may reduce mortality in adults.", "The drug reduces mortality in adults."),
    ("If demand grows, the plant will expand.", "The plant will expand."),
    ("It is false that the plant will close.", "The plant will close."),
    ("Critics claim that the plant pollutes the river.", "The plant pollutes the river."),
    ("Germany failed to qualify for the final.", "Germany qualified for the final."),
    ("The vaccine was effective without a booster.", "The vaccine was effective with a booster."),
    ("The price rose to 5 dollars.", "The price rose 5 dollars."),
    ("The price rose by 5 dollars.", "The price rose to 5 dollars."),
    ("More than 500 people attended.", "500 people attended."),
    ("At least 500 people attended.", "At most 500 people attended."),
    ("The temperature fell to −5 °C.", "The temperature fell to 5 °C."),
    ("The laser emits 5 mW.", "The laser emits 5 MW."),
    ("The ship sailed from Oslo to Bergen.", "The ship sailed from Bergen to Oslo."),
    ("The red team scored 7 and the blue team scored 5.", "The red team scored 5 and the blue team scored 7."),
    ("Turn off the power before removing the cover.", "Remove the cover before turning off the power."),
    ("First mix the flour, then add the eggs.", "First add the eggs, then mix the flour."),
    ("The plant no longer uses coal.", "The plant uses coal."),
    ("Neither Anna nor Ben attended.", "Anna and Ben attended."),
    ("Inflation was 3.2 percent in 2020.", "Inflation was 3.2 percentage points in 2020."),
    ("Google acquired Fitbit in 2021.", "Fitbit acquired Google in 2021."),
    ("Fitbit was acquired by Google in 2021.", "Fitbit acquired Google in 2021."),
    ("Smith beat Jones rather than Brown.", "Smith beat Brown."),
    ("The 5 km run took 30 minutes.", "The 30 km run took 5 minutes."),
    ("Only the north wing was damaged.", "The south wing was damaged."),
    ("The budget was cut from 10 to 8 million.", "The budget was cut from 8 to 10 million."),
    ("Der Umsatz stieg nicht.", "Der Umsatz stieg."),
    ("Les prix n'ont pas augmenté.", "Les prix ont augmenté."),
    ("The device weighs 2.5 kg.", "The device weighs 2.5 g."),
    ("The device weighs 2,5 kg.", "The device weighs 25 kg."),
    ("Der Preis liegt bei 1.230,50 Euro.", "Der Preis liegt bei 1.230,50 Dollar."),
    ("The bill passed the House in May 2019 and the Senate in June 2019.", "The bill passed the Senate in May 2019."),
    ("The bill passed the House in May 2019 and the Senate in June 2019.", "In June 2019 the bill passed the House."),
    ("Anna Berg praised the book that Carl Holm wrote.", "Anna Berg wrote the book."),
    ("The doctor denied that the patient was harmed.", "The patient was harmed."),
    ("Exports increased while imports decreased.", "Exports decreased."),
    ("Hydrogen is lighter than helium.", "Helium is lighter than hydrogen."),
    ("The water is unsafe to drink.", "The water is safe to drink."),
    ("The merger was approved by 5 of 9 judges.", "The merger was approved by 9 of 5 judges."),
    ("Take two tablets every six hours.", "Take six tablets every two hours."),
    ("Take two tablets every six hours.", "Take two tablets every eight hours."),
    ("The event starts at 14:30.", "The event starts at 14:50."),
    ("Version 3.11.2 fixes the bug.", "Version 3.11.3 fixes the bug."),
    ("The plane left at 9 am.", "The plane left at 9 pm."),
    ("Ten percent of the 400 students failed.", "400 percent of the ten students failed."),
    ("Mars is smaller than Earth but larger than Mercury.", "Mars is larger than Earth."),
    ("Mr Lee, not Mr Park, signed the lease.", "Mr Park signed the lease."),
    ("The lease was signed by Mr Lee instead of Mr Park.", "The lease was signed by Mr Park."),
]
NOT_CONTRARY = [
    ("Alice, Bob and Carol met in Rome.", "Bob, Alice and Carol met in Rome."),
    ("Alice met Bob in Rome.", "Bob met Alice in Rome."),
    ("The population was 1,234,567 in 2020.", "The population was about 1.2 million in 2020."),
    ("The United States signed the treaty.", "The US signed the treaty."),
    ("The plant opened in 1990.", "The factory opened in 1990."),
    ("Norway borders Sweden.", "Sweden borders Norway."),
    ("In 2019 the plant made 500 cars. In 2020 the plant made 700 cars.", "The plant made 700 cars in 2020."),
    ("J. Smith founded the club.", "John Smith founded the club."),
    ("The firm did not lose money in 2020.", "The firm made money in 2020."),
    ("The temperature was 5 degrees.", "The temperature was 5 °C."),
    ("The club was founded in London in 1905.", "The club was founded in 1905 in London."),
    ("Profit was $5m.", "Profit was 5 million dollars."),
    ("The river Aare flows through Bern.", "The Aare flows through Bern."),
    ("The company was sold in 2001 by its founder.", "Its founder sold the company in 2001."),
    ("The trial enrolled 200 women and 300 men.", "The trial enrolled 500 people."),
    ("Rainfall was 30 cm in May.", "Rainfall was 300 mm in May."),
    ("The concert began at 8 pm on Friday.", "On Friday the concert began at 8 pm."),
    ("Gen. Moss crossed the river.", "General Moss crossed the river."),
    ("It showed a line, but when it failed, the message went to Bob.", "The message went to Bob."),
    ("FITNESS FOR A PARTICULAR PURPOSE IS DISCLAIMED.", "FITNESS FOR A PURPOSE IS DISCLAIMED."),
    ("At 5 mg it had no effect, whereas 9 mg reduced pressure.", "At 9 mg it reduced pressure."),
    ("It sold two and a half million copies.", "It sold 2.5 million copies."),
]


@requirement("R230")
@pytest.mark.parametrize(("passage", "claim"), LITERAL)
def test_literal_claim_is_supported_in_other_notation(passage: str, claim: str):
    assert judge(claim, passage).state in SURE


@requirement("R230")
@pytest.mark.parametrize(("passage", "claim"), UNSUPPORTED)
def test_shared_words_alone_support_nothing(passage: str, claim: str):
    found = judge(claim, passage)
    assert found.state in ("contradicted", "not-found")
    assert found.reason
    assert any(not check.passed for check in found.checks)


@requirement("R230")
@pytest.mark.parametrize(("passage", "claim"), NOT_CONTRARY)
def test_other_wording_is_not_contradicted(passage: str, claim: str):
    assert judge(claim, passage).state != "contradicted"


ACME = "Acme sold 1,230 pumps to Beta for $5 million on 3 May 2021. The valve was not closed. Exports rose by 4 %."


@requirement("R230")
@pytest.mark.parametrize(
    ("claim", "check"),
    [
        ("Acme sold 1,240 pumps to Beta", "number"),
        ("Acme sold 1,230 pumps to Beta for €5 million", "unit"),
        ("Acme sold 1,230 pumps to Beta for $5 million on 4 May 2021", "date"),
        ("Gamma sold 1,230 pumps to Beta", "name"),
        ("The valve was closed", "polarity"),
        ("Exports fell by 4 %", "polarity"),
        ("Exports rose by 4 percentage points", "unit"),
    ],
)
def test_contradiction_names_failed_check(claim: str, check: str):
    found = judge(claim, ACME)
    assert (found.state, [entry.name for entry in found.checks if not entry.passed]) == ("contradicted", [check])
    assert found.place is not None
    assert found.reason == next(entry.detail for entry in found.checks if not entry.passed)


@requirement("R230")
@pytest.mark.parametrize(
    ("claim", "state", "text"),
    [
        ("The valve was not closed.", "quoted", "The valve was not closed"),
        ("A valve wasn't closed", "supported", "The valve was not closed."),
        ("The report says “exports  rose by 4 %”.", "quoted", "Exports rose by 4 %"),
        ("The valve leaked", "not-found", "The valve was not closed."),
    ],
)
def test_place_is_that_of_words_or_sentence(claim: str, state: EvidenceState, text: str):
    found = judge(claim, ACME)
    assert found.place is not None
    assert (found.state, ACME[slice(*found.place)]) == (state, text)


@requirement("R230")
def test_claim_of_two_sentences_needs_both():
    assert judge("The valve was not closed. Exports rose by 4 percent.", ACME).state == "supported"
    assert judge("The valve was not closed. Exports rose by 5 percent.", ACME).state == "contradicted"
    assert judge("The valve was not closed. Nothing is known about imports.", ACME).state == "not-found"


@requirement("R230")
def test_claim_that_is_compared_in_part_is_not_supported():
    passage = " ".join(f"Station {number} recorded {7 * number} mm of rain." for number in range(100))
    found = judge(f"{passage} The valve leaked.", passage)
    assert (found.state, "first 2,000 characters" in found.reason) == ("not-found", True)


@requirement("R230")
def test_real_quote_does_not_hide_contradicted_claim():
    assert judge("Exports fell by 4 %", ACME, "rose by 4 %").state == "contradicted"
    assert judge("Trade grew", ACME, "rose by 4 %").state == "quoted"
    assert judge("Trade grew", ACME, "rose by 5 %").state == "not-found"


@pytest.mark.parametrize("claim", ["", "!?", "…", "the"])
def test_claim_without_words_is_not_found(claim: str):
    assert judge(claim, ACME).state == "not-found"


def test_unspaced_script_needs_whole_clause():
    assert judge("東京は日本の首都です", "東京は日本の首都です。人口は多い。").state == "quoted"
    assert judge("日本の首都です", "東京は日本の首都です。").state == "not-found"
    assert judge("大阪は日本の首都です", "東京は日本の首都です。").state == "not-found"


TABLE = "\n".join(
    f"Station {name} recorded {1000 + 37 * at:,} mm of rain in 1998." for at, name in enumerate("ABCDEFGHIJKLMNOPQRST")
)


@requirement("R230")
def test_claim_is_found_among_many_similar_sentences():
    assert judge("Station S recorded 1666 mm of rain in 1998.", TABLE).state == "supported"
    assert judge("Station S recorded 1,666 mm of rain in 1999.", TABLE).state == "contradicted"


@requirement("R230")
def test_value_of_another_sentence_is_not_contradicted():
    passage = "The plant built 500 cars in 2019. After the strike the plant built only 700 cars."
    found = judge("The plant built 700 cars.", passage)
    assert (found.state, "differs within itself" in found.reason) == ("not-found", True)
