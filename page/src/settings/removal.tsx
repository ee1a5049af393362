// Confirmation of a removal, in place of the item's buttons.
import { settingsWords as words } from "./words";

export function ConfirmRemoval(props: { question: string; onKeep: () => void; onRemove: () => void }) {
  return (
    <>
      <span>{props.question}</span>
      <button type="button" className="button" onClick={props.onKeep}>
        {words.keep}
      </button>
      <button type="button" className="button danger" onClick={props.onRemove}>
        {words.remove}
      </button>
    </>
  );
}
