/** Return whether two objects are shallowly equal. The AI SDK copies parts shallowly for each chunk. */
export function isShallowEqual(a: object | null, b: object | null): boolean {
  if (a === b) return true;
  if (a === null || b === null) return false;
  const names = Object.keys(a);
  if (names.length !== Object.keys(b).length) return false;
  return names.every((name) => Object.is((a as Record<string, unknown>)[name], (b as Record<string, unknown>)[name]));
}
