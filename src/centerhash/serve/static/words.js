// Distances in words. Their bounds were chosen by eye, from the answers to sixty photos; a tooltip says the bits.

const GENERAL_BITS = 128;
const NEARLY_IDENTICAL = 6; // general bits that recompressing a photo may change
const NEAR = { both: [0.07, 0.17], general: [0.19, 0.32] }; // parts of the bits: up to the first, very similar
const SURE = [0.9, 0.6]; // probability of the least certain label of the query

export function nearness(result, { kind, by, labels }, bits) {
  if (kind === "labels" && result.probability) {
    const asked = labels.filter(([, weight]) => weight > 0);
    const least = Math.min(...asked.map(([name]) => result.probability[name] ?? 0)); // what is not stored was hardly seen
    return ["fits very well", "fits well", "fits partly"][step(-least, SURE.map((value) => -value))];
  }
  if (kind === "labels") return ["fits very well", "fits well", "fits partly"][step(result.distance / bits, NEAR.both)];
  if (result.general !== null && result.general !== undefined && result.general <= NEARLY_IDENTICAL) return "nearly identical";
  const far = by === "general" ? result.general / GENERAL_BITS : result.distance / bits;
  return ["very similar", "similar", "less similar"][step(far, NEAR[by])];
}

const step = (value, [first, second]) => (value <= first ? 0 : value <= second ? 1 : 2);

export function bitsText(result, bits) {
  const semantic = `Hamming distance: ${result.distance} of ${bits} bits`;
  return result.general === null || result.general === undefined ? semantic : `${semantic}, general code ${result.general} of ${GENERAL_BITS} bits`;
}
