// Where a server-side tool runs for a model, in the server's words: `hosted`, `here` or `by` another model.

/** True if the tool runs somewhere; else the words say why not. */
export const isThere = (where: string | undefined) =>
  where === "hosted" || where === "here" || Boolean(where?.startsWith("by "));

/** The provider first, then this machine, then other models. */
export const byPlace = (one: string, other: string) => rank(one) - rank(other) || one.localeCompare(other);

function rank(place: string): number {
  if (place === "hosted") return 0;
  return place === "here" ? 1 : 2;
}
