import { expect, test } from "vitest";
import type { Leaf } from "../api";
import { versionsAt } from "./branches";

const leaf = (number: number, parent: number | null, forkedAt: number | null): Leaf => ({
  leaf: number,
  parent,
  forkedAt,
  updated: number,
});

test("has one version of each message without branches", () => {
  expect(versionsAt([leaf(1, null, null)], 1, 0)).toBeNull();
});

test("treats versions of one message as siblings, even if one derives from another", () => {
  const leaves = [leaf(1, null, null), leaf(2, 1, 2), leaf(3, 2, 2)];
  expect(versionsAt(leaves, 1, 2)).toEqual({ index: 1, count: 3, previous: null, next: 2 });
  expect(versionsAt(leaves, 3, 2)).toEqual({ index: 3, count: 3, previous: 2, next: null });
  expect(versionsAt(leaves, 3, 0)).toBeNull();
});

test("opens the most recently changed branch of a version", () => {
  const leaves = [leaf(1, null, null), leaf(2, 1, 0), leaf(3, 2, 2), leaf(4, 1, 2)];
  expect(versionsAt(leaves, 1, 0)).toEqual({ index: 1, count: 2, previous: null, next: 3 });
  expect(versionsAt(leaves, 2, 0)).toEqual({ index: 2, count: 2, previous: 4, next: null });
  expect(versionsAt(leaves, 3, 2)).toEqual({ index: 2, count: 2, previous: 2, next: null });
  expect(versionsAt(leaves, 4, 2)).toEqual({ index: 2, count: 2, previous: 1, next: null });
});
