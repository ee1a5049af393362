// Icons: 16 px grid, 1.5 px strokes. They are decorative and always accompany text.
const PATHS = {
  plus: "M8 3v10M3 8h10",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM11 11l3 3",
  page: "M4 2h6l3 3v9H4zM10 2v3h3",
  globe: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM2 8h12M8 2c4 4 4 8 0 12M8 2c-4 4-4 8 0 12",
  files: "M5 4h5l3 3v7H5zM3 11V2h6",
  code: "M5 5 2 8l3 3M11 5l3 3-3 3M9 3 7 13",
  shell: "M2 3h12v10H2zM5 6l2 2-2 2M8 10h3",
  image: "M2 3h12v10H2zM5 7.5a1 1 0 1 0 0-2 1 1 0 0 0 0 2zM2 12l4-4 3 3 2-2 3 3",
  patch: "M4 2h8v12H4zM8 4.500v3M6.500 6h3M6.500 10.500h3",
  computer: "M2 3h12v8H2zM6 14h4M8 11v3",
  plug: "M6 2v3M10 2v3M4 5h8v3a4 4 0 0 1-8 0zM8 12v2",
  wrench: "M10 2.500a3.500 3.500 0 0 0-3 5L2.500 12l1.500 1.500L8.500 9a3.500 3.500 0 0 0 5-3l-2 1-2-2z",
  agent: "M8 7a2.500 2.500 0 1 0 0-5 2.500 2.500 0 0 0 0 5zM3 14c0-6 10-6 10 0",
  note: "M3 2h10v8l-4 4H3zM9 14v-4h4",
  thought: "M8 2a5 4.500 0 0 1 2 8.600L9 12H7L6 10.600A5 4.500 0 0 1 8 2zM7 14h2",
  down: "M4 6l4 4 4-4",
  right: "M6 4l4 4-4 4",
  left: "M10 4 6 8l4 4",
  circle: "M8 11.500a3.500 3.500 0 1 0 0-7 3.500 3.500 0 0 0 0 7z",
  dash: "M5 8h6",
  close: "M4 4l8 8M12 4l-8 8",
  check: "M3 8.500 6.500 12 13 4.500",
  warning: "M8 2 14.500 13.500h-13zM8 6.500v3M8 11.700v.1",
  stop: "M4.500 4.500h7v7h-7z",
  send: "M8 13V3M4 7l4-4 4 4",
  clip: "M12 7 7.500 11.500a2.500 2.500 0 0 1-3.500-3.500l5-5a1.700 1.700 0 0 1 2.500 2.500L7 10",
  edit: "M3 13l1-3.500L11 2.500 13.500 5 6.500 12z",
  retry: "M13 8a5 5 0 1 1-1.500-3.500L13 6M13 2.500V6H9.500",
  copy: "M6 6h8v8H6zM10 6V2H2v8h4",
  more: "M2.500 8h1M7.500 8h1M12.500 8h1",
  pin: "M5.500 2h5M6.500 2v5L4 9.500h8L9.500 7V2M8 9.500V14",
  menu: "M2 4h12M2 8h12M2 12h12",
  gear: "M8 10.200a2.200 2.200 0 1 0 0-4.400 2.200 2.200 0 0 0 0 4.400zM8 1.800v2M8 12.200v2M1.800 8h2M12.200 8h2M3.600 3.600l1.400 1.400M11 11l1.400 1.400M12.400 3.600 11 5M5 11l-1.400 1.400",
  panel: "M2 3h12v10H2zM10 3v10",
  bars: "M2 4h7M5 8h6M8 12h6",
  download: "M8 2v8M4.500 7 8 10.500 11.500 7M3 13.500h10",
  trash: "M3 4.500h10M6.500 4V2.500h3V4M4.500 4.500l.5 9h6l.5-9",
  keyboard: "M1.500 4h13v8h-13zM4 7h.1M6.600 7h.1M9.300 7h.1M12 7h.1M5 9.700h6",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg className="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
