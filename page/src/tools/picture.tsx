import { useEffect, useState } from "react";
import { fileUrl } from "../api";
import type { FileView } from "../chat/view";
import { FileTile, isShownInline } from "../parts/files";
import { words } from "../words";
import { type Call, imageTypeOf, previewIn } from "./describe";

/** The image of a call, in one box for its previews and the result. */
export function Picture({ call, files }: { call: Call; files: FileView[] }) {
  const [first, ...others] = files;
  const preview = usePreview(call.output);
  const [ratio, setRatio] = useState(() => sizeIn(call.input));
  const isFinal = first !== undefined && isShownInline(first);
  const shown = isFinal ? first.url : preview;
  if (!shown && call.state !== "running") return files.map((file) => <FileTile key={file.key} file={file} />);
  return (
    <>
      <div
        className={`picture ${isFinal ? "done" : call.state}`}
        style={ratio ? { aspectRatio: ratio } : undefined}
        data-preview={!isFinal && shown ? true : undefined}
      >
        {shown && (
          <img
            src={shown}
            alt={isFinal ? first.name || words.file : words.previewOnly}
            onLoad={({ currentTarget: { naturalWidth, naturalHeight } }) => {
              // The first picture sets the shape, and the others fit into it: nothing moves between previews.
              if (naturalWidth && naturalHeight) setRatio((known) => known ?? `${naturalWidth} / ${naturalHeight}`);
            }}
          />
        )}
      </div>
      {first && <FileTile file={first} isShownAbove={isFinal} />}
      {others.map((file) => (
        <FileTile key={file.key} file={file} />
      ))}
    </>
  );
}

/** Screenshot after the actions of a call. */
export function Screenshot({ call }: { call: Call }) {
  const shown = usePreview(call.output);
  return shown && <img className="screenshot" src={shown} alt={words.screenshot} />;
}

/** Return the URL of the last preview. A small one arrives inline, and gets a `blob:` URL. */
function usePreview(output: unknown): string | null {
  const found = previewIn(output);
  const [url, setUrl] = useState<string | null>(null);
  useEffect(() => {
    if (found === null) return setUrl(null);
    const mediaType = imageTypeOf(found);
    if (!mediaType) return setUrl(fileUrl(found));
    const made = URL.createObjectURL(new Blob([bytesOf(found)], { type: mediaType }));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [found]);
  return url;
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

/** Return the requested aspect ratio, so that the box has it before the first preview. */
function sizeIn(input: Record<string, unknown>): string | null {
  const found = typeof input.size === "string" ? /^(\d+)x(\d+)$/.exec(input.size) : null;
  return found ? `${found[1]} / ${found[2]}` : null;
}
