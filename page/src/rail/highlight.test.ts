import { expect, test } from "vitest";
import { piecesOf } from "./highlight";

test("marks every occurrence, in any case and with any space", () => {
  expect(piecesOf("The Eclipse of 2027, an eclipse", "eclipse")).toEqual([
    "The ",
    "Eclipse",
    " of 2027, an ",
    "eclipse",
    "",
  ]);
  expect(piecesOf("Ans  Ende der ÄRA", " ende  DER ära ")).toEqual(["Ans  ", "Ende der ÄRA", ""]);
});

test("takes the search literally", () => {
  for (const search of ["a.c", "(x)", "[z-a]", "1+1=2", "$&", "\\d", "a/b-c", "*", "^|?{1}"]) {
    expect(piecesOf(`say ${search}, not abc`, search)[1]).toBe(search);
  }
  expect(piecesOf("nothing", "")).toEqual(["nothing"]);
  expect(piecesOf("nothing", "else")).toEqual(["nothing"]);
});
