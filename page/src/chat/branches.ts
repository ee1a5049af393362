// Branches of a conversation: which versions of a message exist, and which branch shows each.
import type { Leaf } from "../api";

export interface Versions {
  /** The place of the shown version, from 1. */
  index: number;
  count: number;
  /** The branch that shows the version before or after, if there is one. */
  previous: number | null;
  next: number | null;
}

/** The versions of the message at this place of a branch; null if there is only one. */
export function versionsAt(leaves: Leaf[], leaf: number, place: number): Versions | null {
  const byNumber = new Map(leaves.map((one) => [one.leaf, one]));
  const mine = byNumber.get(leaf);
  if (!mine) return null;
  /** The branch whose own message stands at this place, in the history of another. */
  const ownerOf = (one: Leaf): Leaf => {
    let owner = one;
    while (owner.forkedAt !== null && owner.forkedAt > place) {
      const parent = owner.parent === null ? undefined : byNumber.get(owner.parent);
      if (!parent) break;
      owner = parent;
    }
    return owner;
  };
  /** The first version of the message that this branch has another of. */
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
