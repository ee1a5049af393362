// Where a tool runs for a model, as the server reports it: `hosted`, `here` or `by` another model.

/** Return whether the tool is available. If not, the value says why. */
export const isThere = (where: string | undefined) =>
  where === "hosted" || where === "here" || Boolean(where?.startsWith("by "));

/** Sort the provider first, then this machine, then other models. */
export const byPlace = (one: string, other: string) => rank(one) - rank(other) || one.localeCompare(other);

function rank(place: string): number {
  if (place === "hosted") return 0;
  return place === "here" ? 1 : 2;
}
