import { expect, test } from "vitest";
import { typeName } from "./file_types";

test.each([
  ["image/png", "a.png", "PNG image"],
  ["text/csv; charset=utf-8", "a.csv", "CSV table"],
  ["application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "a", "Excel workbook"],
  ["image/x-icon", "a.ico", "ICON image"],
  ["application/octet-stream", "model.onnx", "ONNX file"],
  ["application/octet-stream", "unnamed", "File"],
])("names %s for people", (type, name, expected) => expect(typeName(type, name)).toBe(expected));
