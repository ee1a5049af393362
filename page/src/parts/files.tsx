import { memo, useContext, useState } from "react";
import { errorOf } from "../api";
import type { FileView } from "../chat/view";
import { Thread } from "../thread/context";
import { Dialog } from "../ui/dialog";
import { Icon } from "../ui/icons";
import { words } from "../words";
import { typeName, useFileSize } from "./file_types";

const IMAGES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const TEXTS = /^text\/|^application\/(json|x-ndjson|x-yaml|yaml|toml|sql)$/;
const MOST_SHOWN = 1_000_000;

/** Return whether the page may load a URL: its own server's, or a local attachment's. */
function isOwn(url: string): boolean {
  return url.startsWith("blob:") || (url.startsWith("/") && !url.startsWith("//"));
}

/** Return whether a file is an image that is safe to show and to load. */
export const isShownInline = (file: FileView) => IMAGES.has(file.mediaType) && isOwn(file.url);

interface Props {
  file: FileView;
  /** Whether its image is already shown above. */
  isShownAbove?: boolean;
}

/** A file. Images of the four safe formats are shown, text can be viewed, the rest can only be downloaded. */
export const FileTile = memo(function FileTile({ file, isShownAbove = false }: Props) {
  const [isBroken, setBroken] = useState(false);
  const { inspect } = useContext(Thread);
  const [problem, setProblem] = useState<string | null>(null);
  const [isLarge, enlarge] = useState(false);
  const name = file.name || words.file;
  const isOpenable = isOwn(file.url);
  const about = [typeName(file.mediaType, name), useFileSize(file.url, isOpenable)].filter(Boolean).join(", ");
  const view = async () => {
    setProblem(null);
    try {
      const response = await fetch(file.url);
      if (!response.ok) throw await errorOf(response);
      const text = await response.text();
      const isCut = text.length > MOST_SHOWN;
      inspect({ kind: "text", title: name, text: isCut ? `${text.slice(0, MOST_SHOWN)}\n…` : text });
    } catch (error) {
      setProblem(`${words.notDownloaded(name)}: ${(error as Error).message}`);
    }
  };
  return (
    <figure className="file">
      {!isShownAbove && isShownInline(file) && !isBroken && (
        <img src={file.url} alt={name} loading="lazy" onError={() => setBroken(true)} />
      )}
      <figcaption>
        <Icon name={file.mediaType.startsWith("image/") ? "image" : "page"} />
        <span className="file-what">
          <span className="file-name" dir="auto" title={name}>
            {name}
          </span>
          <span className="file-type meta" title={file.mediaType}>
            {about}
          </span>
        </span>
        {isShownInline(file) && !isBroken && (
          <button type="button" className="button quiet" onClick={() => enlarge(true)}>
            <Icon name="image" /> <span className="wide-word">{words.view}</span>
          </button>
        )}
        {isOpenable && TEXTS.test(file.mediaType) && (
          <button type="button" className="button quiet" onClick={() => void view()}>
            <Icon name="page" /> <span className="wide-word">{words.view}</span>
          </button>
        )}
        {isOpenable && (
          <a className="button quiet" href={file.url} download={file.name || ""}>
            <Icon name="download" /> <span className="wide-word">{words.download}</span>
          </a>
        )}
      </figcaption>
      {isBroken && (
        <p className="mark missing">
          {words.notDownloaded(name)}{" "}
          <button type="button" className="link" onClick={() => setBroken(false)}>
            {words.retry}
          </button>
        </p>
      )}
      {problem && <p className="mark missing">{problem}</p>}
      {isLarge && (
        <Dialog title={name} kind="picture" onClose={() => enlarge(false)}>
          <img src={file.url} alt={name} />
        </Dialog>
      )}
    </figure>
  );
});
