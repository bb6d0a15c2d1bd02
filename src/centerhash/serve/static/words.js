// Distances in words. Their bounds were chosen by eye, from the answers to sixty photos; a tooltip says the bits.

const VISUAL_BITS = 128;
const SAME_LOOK = 6; // visual bits that encoding the same photo again may change
const NEAR = { both: [0.07, 0.17], look: [0.19, 0.32] }; // parts of the bits: up to the first, very similar
const SURE = [0.9, 0.6]; // presence of the least certain label asked for

export function nearness(result, { kind, by, labels }, bits) {
  if (kind === "labels" && result.presence) {
    const asked = labels.filter(([, weight]) => weight > 0);
    const least = Math.min(...asked.map(([name]) => result.presence[name] ?? 0)); // what is not stored was hardly seen
    return ["fits very well", "fits well", "fits partly"][step(-least, SURE.map((value) => -value))];
  }
  if (kind === "labels") return ["fits very well", "fits well", "fits partly"][step(result.distance / bits, NEAR.both)];
  if (result.look !== null && result.look !== undefined && result.look <= SAME_LOOK) return "same photo";
  const far = by === "look" ? result.look / VISUAL_BITS : result.distance / bits;
  return ["very similar", "similar", "less similar"][step(far, NEAR[by])];
}

const step = (value, [first, second]) => (value <= first ? 0 : value <= second ? 1 : 2);

export function bitsText(result, bits) {
  const meaning = `${result.distance} of ${bits} bits differ`;
  return result.look === null || result.look === undefined ? meaning : `${meaning}, and ${result.look} of ${VISUAL_BITS} of the look`;
}
