import { expect, test } from "vitest";
import { fieldsOf, readEntries, startOf } from "./fields";

const SCHEMA = {
  type: "object",
  properties: {
    row: { type: "integer", title: "Row", minimum: 1, maximum: 30 },
    price: { type: "number" },
    meal: { type: "boolean", default: true },
    side: { type: "string", enum: ["aisle", "window"], default: "aisle" },
    cabin: {
      type: "string",
      oneOf: [
        { const: "e", title: "Economy" },
        { const: "b", title: "Business" },
      ],
    },
    bags: { type: "array", items: { type: "string", enum: ["small", "large"] }, maxItems: 1 },
    mail: { type: "string", format: "email" },
    note: { type: "string", default: "none", maxLength: 5 },
  },
  required: ["row", "cabin"],
};

const fields = fieldsOf(SCHEMA);
const read = (entries: object) => readEntries(fields, { ...startOf(fields), ...entries });

test("converts a schema to fields with its defaults", () => {
  expect(fields.map(({ name, kind }) => [name, kind])).toEqual([
    ["row", "integer"],
    ["price", "number"],
    ["meal", "boolean"],
    ["side", "choice"],
    ["cabin", "choice"],
    ["bags", "choices"],
    ["mail", "text"],
    ["note", "text"],
  ]);
  expect(startOf(fields)).toMatchObject({ row: "", meal: true, side: "0", cabin: "", bags: [], note: "none" });
  expect(fields[4]!.choices.map(({ label }) => label)).toEqual(["Economy", "Business"]);
});

test("converts entries to the schema's types and omits empty ones", () => {
  const { answers, problems } = read({ row: "7", cabin: "1", bags: [1], note: "" });
  expect(problems).toEqual({});
  expect(answers).toEqual({ row: 7, meal: true, side: "aisle", cabin: "b", bags: ["large"], note: "" });
});

test.each([
  [{ cabin: "0" }, "row"],
  [{ cabin: "0", row: "7.5" }, "row"],
  [{ cabin: "0", row: "front" }, "row"],
  [{ cabin: "0", row: "31" }, "row"],
  [{ row: "7" }, "cabin"],
  [{ row: "7", cabin: "0", price: "much" }, "price"],
  [{ row: "7", cabin: "0", bags: [0, 1] }, "bags"],
  [{ row: "7", cabin: "0", mail: "nobody" }, "mail"],
  [{ row: "7", cabin: "0", note: "too long" }, "note"],
  [{ row: "7", cabin: "0", side: "" }, "side"],
])("%j has a problem with %s", (entries, name) => {
  expect(Object.keys(read(entries).problems)).toEqual([name]);
});

test.each([null, 1, [], {}, { properties: [] }, { properties: { a: 1, b: null } }])(
  "%j does not break it",
  (schema) => {
    expect(readEntries(fieldsOf(schema), {}).problems).toEqual({});
  },
);
