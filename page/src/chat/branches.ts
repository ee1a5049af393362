// Branches of a conversation: the versions of each message, and the branches that show them.
import type { Leaf } from "../api";

export interface Versions {
  /** Position of the shown version, from 1. */
  index: number;
  count: number;
  /** Branches that show the previous and the next version, if any. */
  previous: number | null;
  next: number | null;
}

/** Return the versions of the message at this position of a branch, or null if there is only one. */
export function versionsAt(leaves: Leaf[], leaf: number, place: number): Versions | null {
  const byNumber = new Map(leaves.map((one) => [one.leaf, one]));
  const mine = byNumber.get(leaf);
  if (!mine) return null;
  /** Return the ancestor that owns the message at this position. */
  const ownerOf = (one: Leaf): Leaf => {
    let owner = one;
    while (owner.forkedAt !== null && owner.forkedAt > place) {
      const parent = owner.parent === null ? undefined : byNumber.get(owner.parent);
      if (!parent) break;
      owner = parent;
    }
    return owner;
  };
  /** Return the branch with the first version of the message that this branch replaces. */
  const originOf = (one: Leaf): Leaf => {
    let origin = ownerOf(one);
    while (origin.forkedAt === place) {
      const parent = origin.parent === null ? undefined : byNumber.get(origin.parent);
      if (!parent) break;
      origin = ownerOf(parent);
    }
    return origin;
  };
  const origin = originOf(mine);
  const owners = leaves.filter((one) => ownerOf(one) === one && originOf(one) === origin);
  const versions = owners.filter((one) => one === origin || one.forkedAt === place).sort((a, b) => a.leaf - b.leaf);
  if (versions.length < 2) return null;
  const index = versions.indexOf(ownerOf(mine));
  const newest = (version: Leaf | undefined) =>
    version
      ? leaves.filter((one) => ownerOf(one) === version).reduce((a, b) => (b.updated > a.updated ? b : a), version).leaf
      : null;
  return {
    index: index + 1,
    count: versions.length,
    previous: newest(versions[index - 1]),
    next: newest(versions[index + 1]),
  };
}
