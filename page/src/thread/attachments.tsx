import { useEffect, useRef, useState } from "react";
import { type Attachment, attach, MAX_FILE_BYTES } from "../chat/uploads";
import { size } from "../format";
import { Icon } from "../ui/icons";
import { words } from "../words";

/** Convert files to attachments, and report files that are too large. */
export function attachAll(files: Iterable<File>, onTooLarge: (note: string) => void): Attachment[] {
  const added: Attachment[] = [];
  for (const file of files) {
    if (file.size > MAX_FILE_BYTES) onTooLarge(words.tooLarge(file.name, size(MAX_FILE_BYTES)));
    else added.push(attach(file, file.name));
  }
  return added;
}

/** Attachments of the next message. */
export function Attachments({ files, onRemove }: { files: Attachment[]; onRemove: (file: Attachment) => void }) {
  if (files.length === 0) return null;
  return (
    <ul className="attachments">
      {files.map((file) => (
        <li key={file.url}>
          {file.mediaType.startsWith("image/") && !file.mediaType.includes("svg") && <img src={file.url} alt="" />}
          <span dir="auto">{file.name}</span> {file.bytes !== null && <span className="meta">{size(file.bytes)}</span>}
          <button
            type="button"
            className="button quiet icon"
            aria-label={words.removeFile(file.name)}
            onClick={() => onRemove(file)}
          >
            <Icon name="close" />
          </button>
        </li>
      ))}
    </ul>
  );
}

/** Button to attach files. */
export function AttachButton({ onAdd }: { onAdd: (files: Iterable<File>) => void }) {
  const picker = useRef<HTMLInputElement>(null);
  return (
    <>
      <button
        type="button"
        className="button quiet icon"
        title={words.attach}
        aria-label={words.attach}
        onClick={() => picker.current?.click()}
      >
        <Icon name="clip" />
      </button>
      <input
        ref={picker}
        type="file"
        multiple
        hidden
        onChange={(event) => {
          onAdd(event.target.files ?? []);
          event.target.value = "";
        }}
      />
    </>
  );
}

/** Attach files dropped anywhere on the page. Returns whether files are being dragged over it. */
export function useDrop(add: (files: Iterable<File>) => void): boolean {
  const [isOver, setOver] = useState(false);
  const adding = useRef(add);
  adding.current = add;
  useEffect(() => {
    const hasFiles = (event: DragEvent) => event.dataTransfer?.types.includes("Files") ?? false;
    const over = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(true);
    };
    const leave = (event: DragEvent) => event.relatedTarget === null && setOver(false);
    const drop = (event: DragEvent) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      setOver(false);
      adding.current(event.dataTransfer!.files);
    };
    window.addEventListener("dragover", over);
    window.addEventListener("dragleave", leave);
    window.addEventListener("drop", drop);
    return () => {
      window.removeEventListener("dragover", over);
      window.removeEventListener("dragleave", leave);
      window.removeEventListener("drop", drop);
    };
  }, []);
  return isOver;
}
