import { CopyButton } from "../ui/copy";
import { words } from "../words";
import { useHighlight } from "./highlight";

interface Props {
  code: string;
  language: string;
  /** Whether the block is complete. Only complete blocks are highlighted. */
  isClosed?: boolean;
}

export function CodeBlock({ code, language, isClosed = true }: Props) {
  const leaves = useHighlight(code, language, isClosed);
  return (
    <figure className="code" dir="ltr">
      <figcaption>
        <span className="meta">{language.split(/\s/)[0]}</span>
        <CopyButton text={() => code} label={words.copyCode} />
      </figcaption>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
      <pre tabIndex={0}>
        <code>
          {leaves
            ? leaves.map((leaf, index) =>
                leaf.className ? (
                  <span key={index} className={leaf.className}>
                    {leaf.text}
                  </span>
                ) : (
                  leaf.text
                ),
              )
            : code}
        </code>
      </pre>
    </figure>
  );
}
